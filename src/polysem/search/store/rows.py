"""What a snapshot is made of: segments as they count at one moment, the items in them, and how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polysem.search.store.entries import Side
from polysem.search.store.segments import Damage, Segment


class Item(NamedTuple):
    """An item of the index. position: where its vectors are on its side; -1 if its segment cannot be read, and where
    there are no positions."""

    id: str
    side: Side
    position: int
    path: str | None
    caption: str | None
    metadata: dict[str, Any]
    labels: tuple[str, ...]
    hash: str | None
    added: float


@dataclass(frozen=True)
class View:
    """A segment as this snapshot sees it. start: position of its first row. dead: packed bits, None if all count."""

    number: int
    side: Side
    start: int
    segment: Segment
    dead: bytes | None

    @property
    def rows(self) -> int:
        return len(self.vectors)

    @property
    def vectors(self) -> NDArray[Any]:
        """(rows, K, D), mapped and read-only."""
        return self.segment.arrays["vectors"]

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Everything stored for its rows, by name."""
        return self.segment.arrays

    def attached(self, name: str) -> Segment | None:
        """What `Store.attach` wrote for this segment under this name, None if nothing: `about` and `arrays` of it."""
        try:
            return Segment.open(attached_path(self.segment.path, name))
        except FileNotFoundError:
            return None

    @property
    def live(self) -> NDArray[np.bool_]:
        """(rows,) whether each row counts."""
        return live_rows(self.dead, self.rows)


class Stats(NamedTuple):
    """How large an index is. dead: rows that take space and do not count, until `compact`.

    bytes: of all files; None where another program keeps them. change: another number after everything that was added
    or rewritten.
    """

    items: int
    by_side: dict[str, int]
    dead: int
    segments: int
    bytes: int | None
    words: bool
    change: int = 0

    @property
    def bytes_per_item(self) -> float | None:
        return None if self.bytes is None else self.bytes / max(1, self.items)


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"segment-{number:06d}.seg"


def attached_path(segment: Path, name: str) -> Path:
    return segment.with_name(f"{segment.stem}.{name}.seg")


def unreadable(path: Path, error: Exception) -> Damage:
    """The damage of a segment that cannot be opened."""
    if isinstance(error, OSError):
        why = "the file is gone" if isinstance(error, FileNotFoundError) else f"it cannot be read ({error.strerror})"
        return Damage(path.name, None, why)
    return Damage(path.name, None, str(error))


def live_rows(dead: bytes | None, rows: int) -> NDArray[np.bool_]:
    """(rows,) mask of packed dead bits."""
    if dead is None:
        return np.ones(rows, np.bool_)
    return ~np.unpackbits(np.frombuffer(dead, np.uint8), count=rows).astype(np.bool_)
