"""The journal of one rank: one checksummed line for each batch whose values are safe on disk."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from polysem.data.store.errors import StoreError, failed


@dataclass(frozen=True)
class Record:
    """A batch: items that lie one after the other in a shard, and what was left out while making it.

    start: its first value, counted in values from the beginning of the shard. lengths: tokens of each item.
    summary: width of the global feature that follows each item's tokens, 0 if there is none.
    crc32: of the bytes of all its values. skipped: (id, reason) of each item that has no features.
    """

    shard: int
    start: int
    ids: list[str]
    lengths: list[int]
    summary: int
    crc32: int
    skipped: list[tuple[str, str]]

    def values(self, dim: int) -> int:
        """How many values it holds."""
        return sum(self.lengths) * dim + self.summary * len(self.ids)

    def line(self) -> bytes:
        content = json.dumps(asdict(self), separators=(",", ":")).encode()
        return b"%s\t%08x\n" % (content, zlib.crc32(content))


def path_of(folder: Path, rank: int) -> Path:
    return folder / f"journal-{rank:03d}.jsonl"


def shard_path(folder: Path, rank: int, number: int) -> Path:
    return folder / f"shard-{rank:03d}-{number:05d}.bin"


def ranks(folder: Path) -> list[int]:
    """The ranks that have written to this store, in order."""
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("journal-*.jsonl"))


def read(path: Path) -> Iterator[tuple[Record, int]]:
    """Each record with the position where its line ends. A torn last line was never committed: it is left out."""
    end = 0
    try:
        with path.open("rb") as file:
            for line in file:
                record = _parse(line)
                if record is None:
                    # Lines are written one after the other, so only the last can be torn.
                    if file.read(1):
                        raise StoreError(
                            f"{path} is damaged at byte {end}, before its end: something else has written to it. "
                            "Restore the file, or extract into another folder."
                        )
                    return
                end += len(line)
                yield record, end
    except OSError as error:
        raise failed("read", path, error) from None


def _parse(line: bytes) -> Record | None:
    content, tab, checksum = line.rpartition(b"\t")
    if not tab or checksum != b"%08x\n" % zlib.crc32(content):
        return None
    found = json.loads(content)
    found["skipped"] = [(key, why) for key, why in found["skipped"]]
    return Record(**found)
