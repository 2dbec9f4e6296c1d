"""The files of a feature store: its manifest and the journal of each rank."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from polysem.atomic_write import create_file
from polysem.errors import ConfigError, InputError, os_error_remedy

MANIFEST = "manifest.json"
VERSION = 1
Dtype = Literal["float16", "float32"]


class StoreError(InputError):
    """A feature store that is missing, damaged, in use, or made for something else."""


def os_failure(action: str, path: Path, error: OSError) -> StoreError:
    """A `StoreError` for an action that the operating system refused, with what to do about it."""
    return StoreError(
        f"Cannot {action} {path}: {error.strerror or error}. {os_error_remedy(error)} and run the same command again; "
        "what was committed before is safe and is not done twice."
    )


@dataclass(frozen=True)
class FeatureManifest:
    """What every feature of a store has in common.

    Args:
        collection: name of what was extracted; ids mean something within it alone.
        fingerprint: hash of the encoder's weights and preprocessing. It decides whether two stores fit together.
        dim: width of a token.
        dtype: of the values on disk.
        encoder, preprocessing: their configs, to explain a fingerprint that differs.
    """

    collection: str
    fingerprint: str
    dim: int
    dtype: Dtype = "float16"
    encoder: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            raise ConfigError(f"Features are stored as {' or '.join(get_args(Dtype))}, not as {self.dtype!r}.")
        # As they come back from the file, so that a manifest equals itself read again.
        for name in ("encoder", "preprocessing"):
            object.__setattr__(self, name, json.loads(json.dumps(dict(getattr(self, name)))))

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the values on disk: little-endian on every machine."""
        return np.dtype(self.dtype).newbyteorder("<")

    def differences(self, other: FeatureManifest) -> list[str]:
        """One line for each thing that makes `other` another kind of feature; empty if they may share a store."""
        lines = [
            f"{name}: {getattr(self, name)!r} in the store, {getattr(other, name)!r} now"
            for name in ("collection", "fingerprint", "dim", "dtype")
            if getattr(self, name) != getattr(other, name)
        ]
        if self.fingerprint != other.fingerprint:
            changes = [
                f"{kind} {name}: {old.get(name)!r:.80} in the store, {new.get(name)!r:.80} now"
                for kind in ("encoder", "preprocessing")
                for old, new in [(getattr(self, kind), getattr(other, kind))]
                for name in sorted(old.keys() | new.keys())
                if old.get(name) != new.get(name)
            ]
            lines += changes or ["the encoders differ in their weights alone"]
        return lines


def write_manifest(folder: Path, manifest: FeatureManifest) -> None:
    """Write the manifest of a new store; refuse a store that holds features of another kind."""
    content = (json.dumps(asdict(manifest), indent=2) + "\n").encode()
    try:
        if create_file(folder / MANIFEST, content):
            return
    except OSError as error:
        raise os_failure("write", folder / MANIFEST, error) from None
    differences = read_manifest(folder).differences(manifest)
    if differences:
        remedy = "Extract into another folder, use the encoder and options of this one, or delete it."
        raise StoreError(f"{folder} holds features of another kind: {'; '.join(differences)}. {remedy}")


def read_manifest(folder: Path) -> FeatureManifest:
    """Read the manifest of a store."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(
            f"{folder} is not a feature store (no {MANIFEST}). Make one with `polysem features DATA --out {folder}`."
        ) from None
    except OSError as error:
        raise os_failure("read", path, error) from None
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}). Restore it, or extract into another folder.") from None
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise StoreError(f"{path} is of version {version}, this polysem reads {VERSION}. Extract the features again.")
    try:
        return FeatureManifest(**{each.name: content[each.name] for each in fields(FeatureManifest)})
    except KeyError as error:
        raise StoreError(f"{path} lacks {error}. Restore it, or extract into another folder.") from None


@dataclass(frozen=True)
class JournalRecord:
    """A committed batch: items that lie one after the other in a shard, and what was left out while making it.

    Args:
        start: its first value, counted in values from the beginning of the shard.
        lengths: number of tokens of each item.
        summary: width of the global feature that follows each item's tokens, 0 if there is none.
        crc32: of the bytes of all its values.
        skipped: (id, reason) of each item that has no features.
    """

    shard: int
    start: int
    ids: list[str]
    lengths: list[int]
    summary: int
    crc32: int
    skipped: list[tuple[str, str]]

    def count_values(self, dim: int) -> int:
        """How many values it holds."""
        return sum(self.lengths) * dim + self.summary * len(self.ids)

    def to_line(self) -> bytes:
        """JSON, a tab, and the checksum of the JSON."""
        content = json.dumps(asdict(self), separators=(",", ":")).encode()
        return b"%s\t%08x\n" % (content, zlib.crc32(content))


def journal_path(folder: Path, rank: int) -> Path:
    return folder / f"journal-{rank:03d}.jsonl"


def shard_path(folder: Path, rank: int, number: int) -> Path:
    return folder / f"shard-{rank:03d}-{number:05d}.bin"


def read_journal(path: Path) -> Iterator[tuple[JournalRecord, int]]:
    """Yield each record with the position where its line ends. A torn last line was never committed: left out."""
    end = 0
    try:
        with path.open("rb") as file:
            for line in file:
                content, tab, checksum = line.rpartition(b"\t")
                if not tab or checksum != b"%08x\n" % zlib.crc32(content):
                    # Lines are written one after the other, so only the last can be torn.
                    if file.read(1):
                        damage = f"{path} is damaged at byte {end}, before its end: something else has written to it"
                        raise StoreError(f"{damage}. Restore the file, or extract into another folder.")
                    return
                end += len(line)
                values = json.loads(content)
                yield JournalRecord(**{**values, "skipped": [(key, why) for key, why in values["skipped"]]}), end
    except OSError as error:
        raise os_failure("read", path, error) from None


def read_records(folder: Path) -> Iterator[tuple[Path, JournalRecord]]:
    """Every committed batch of a store with the shard that holds it, rank by rank in the order of writing."""
    for rank in sorted(int(path.stem.split("-")[1]) for path in folder.glob("journal-*.jsonl")):
        for record, _ in read_journal(journal_path(folder, rank)):
            yield shard_path(folder, rank, record.shard), record
