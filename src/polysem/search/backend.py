"""Where an index keeps its items and how it finds them: what `Index` asks of a folder on disk or of a Milvus server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from polysem.search.filters import Filter
from polysem.search.store import Added, Batch, Compacted, Damage, Item, Manifest, Side, Stats

Mode = Literal["exact", "fast"]
CANDIDATES = 200
"""How many items the fast mode scores in full, for each query."""


@dataclass(frozen=True)
class Ranked:
    """Items best first with their scores in float64 and their sets (n, K, D).

    scored: how many were compared in full. unreadable: how many could not be, because what holds them is damaged.
    """

    items: Sequence[Item]
    scores: NDArray[np.float64]
    sets: NDArray[Any]
    scored: int
    unreadable: int = 0


class Backend(Protocol):
    """One index. Writing methods raise `SearchError` where it was opened for reading.

    Scores are the model's similarity of the sets as stored, in float64; equal scores come in the order of adding.
    """

    manifest: Manifest
    modes: Sequence[Mode]
    """The ways to search it offers, the default first."""
    writable: bool
    keeps_frames: bool
    """Whether it keeps the frames of videos; where not, batches need not bring them, and results have no moment."""

    def add(self, *batches: Batch) -> Added:
        """Add items; an id that is there on the same side is replaced.

        A folder adds all of them or none; Milvus whole items, and of an interrupted call perhaps the first ones alone.
        """

    def remove(self, ids: Iterable[str], side: Side | None = None, *, texts: Iterable[str] = ()) -> int:
        """Remove the items with these ids, on one side or both, and these texts; how many there were. One step."""

    def settle(self, progress: Any = None) -> None:
        """After adding: work out what makes searching fast. progress(stage, done, of)."""

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        """The content hash of each of these ids that is there."""

    def paths(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        """The path of each of these ids that is there."""

    def find(self, ids: Iterable[str], side: Side | None = None) -> list[Item]:
        """The items with these ids, in their order. Ids that are not there are left out."""

    def captions_of(self, ids: Iterable[str]) -> list[str]:
        """The ids of the texts that were added as captions of the images with these ids (`metadata.item`)."""

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        """(n, K, D) sets of these ids, all of which must be there."""

    def sound(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]:
        """(K, D) of those of these ids that are there and whose checksum says that they are as they were added."""

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
        """(frames, K, D) of those of these ids that are videos."""

    def holds(self, side: Side) -> bool:
        """Whether there are items of a side, be they readable or not."""

    def count(self, side: Side, where: Filter | None = None) -> int:
        """How many items of a side there are and, with `where`, pass the filter."""

    def search(
        self,
        side: Side,
        query: NDArray[Any],
        k: int,
        *,
        where: Filter | None = None,
        mode: Mode | None = None,
        candidates: int = CANDIDATES,
    ) -> Ranked:
        """The k best items of a side for a query set (L, D). candidates: scored in full by the fast mode."""

    def sample(self, side: Side, count: int, *, where: Filter | None = None, seed: int = 0) -> list[str]:
        """Ids of up to `count` items of a side that pass the filter, drawn at random; the same for the same seed."""

    def matching(self, side: Side, where: Filter) -> list[str]:
        """The ids of all items of a side that pass the filter, those too whose vectors cannot be read."""

    def background(
        self, side: Side, query: NDArray[Any], count: int, *, where: Filter | None = None, seed: int = 0
    ) -> NDArray[np.float64]:
        """Scores of a query set (L, D) with the items that `sample` would draw: what an ordinary score is."""

    def note(self, name: str) -> Any:
        """The JSON value kept under this name beside the index; None if there is none."""

    def write_note(self, name: str, value: Any) -> None:
        """Keep a JSON value beside the index."""

    def stats(self) -> Stats:
        """How many items, and how large."""

    def verify(self, progress: Any = None) -> list[Damage]:
        """Check all that is stored; what is damaged."""

    def repair(self, damage: Sequence[Damage]) -> list[Damage]:
        """Make again what is damaged and can be made again, where this may write; the damage that is left."""

    def among(self, damage: Damage) -> list[str]:
        """The ids of the items that a damage concerns."""

    def compact(self) -> Compacted:
        """Give back the space of removed items."""

    def close(self) -> None:
        """Let go of files and connections. Safe to call twice."""
