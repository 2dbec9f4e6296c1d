"""The manifest: which encoder made the features of a store, how, and in which form they lie there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from polysem.atomic_write import create_file
from polysem.data.store.errors import StoreError, failed
from polysem.errors import ConfigError

NAME = "manifest.json"
VERSION = 1
Dtype = Literal["float16", "float32"]


@dataclass(frozen=True)
class Manifest:
    """What every feature of a store has in common.

    collection: name of what was extracted; ids mean something within it alone.
    fingerprint: of the encoder's weights and preprocessing. encoder: its config. Both, because a fingerprint decides
    and a config explains.
    dim: width of a token.
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

    def differences(self, other: Manifest) -> list[str]:
        """One line for each thing that makes `other` another kind of feature; empty if they may share a store."""
        found = [
            f"{name}: {getattr(self, name)!r} in the store, {getattr(other, name)!r} now"
            for name in ("collection", "fingerprint", "dim", "dtype")
            if getattr(self, name) != getattr(other, name)
        ]
        if self.fingerprint != other.fingerprint:
            knobs = _changed("encoder", self.encoder, other.encoder)
            seen = _changed("preprocessing", self.preprocessing, other.preprocessing)
            found += [*knobs, *seen] or ["the encoders differ in their weights alone"]
        return found


def settle(folder: Path, wanted: Manifest) -> None:
    """Make `wanted` the manifest of a new store; refuse a store that holds something else."""
    content = (json.dumps(asdict(wanted), indent=2) + "\n").encode()
    try:
        if create_file(folder / NAME, content):
            return
    except OSError as error:
        raise failed("write", folder / NAME, error) from None
    differences = load(folder).differences(wanted)
    if differences:
        raise StoreError(
            f"{folder} holds features of another kind: {'; '.join(differences)}. "
            "Extract into another folder, use the encoder and options of this one, or delete it."
        )


def load(folder: Path) -> Manifest:
    """The manifest of a store."""
    path = folder / NAME
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(
            f"{folder} is no feature store: it has no {NAME}. Make one with `polysem features DATA --out {folder}`."
        ) from None
    except OSError as error:
        raise failed("read", path, error) from None
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}). Restore it, or extract into another folder.") from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        raise StoreError(f"{path} is of version {version}, this polysem reads {VERSION}. Extract the features again.")
    try:
        return Manifest(**{name.name: found[name.name] for name in fields(Manifest)})
    except KeyError as error:
        raise StoreError(f"{path} lacks {error}. Restore it, or extract into another folder.") from None


def _changed(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"{kind} {name}: {old.get(name)!r:.80} in the store, {new.get(name)!r:.80} now"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
