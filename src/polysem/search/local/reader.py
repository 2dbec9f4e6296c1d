"""Reading an index in a folder: every method on one snapshot, be it pinned or the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.search.backend import CANDIDATES, Mode, Ranking
from polysem.search.engine import TopHits
from polysem.search.filters import Filter
from polysem.search.local.side_searcher import SideSearcher
from polysem.search.store import Damage, IndexedItem, Manifest, Side, Snapshot, Stats

_NORM_ERROR = 0.02


class ReadState(NamedTuple):
    """A snapshot that is held, the searcher of each side, and how many items are in segments that cannot be read."""

    snapshot: Snapshot
    sides: Mapping[str, SideSearcher]
    unreadable: int


class LocalReader:
    """An `IndexReader` pinned to one snapshot. `LocalBackend` inherits it and reads the newest one in each call."""

    modes: Sequence[Mode] = ("exact", "fast")

    def __init__(self, manifest: Manifest, state: ReadState | None = None) -> None:
        self.manifest, self._state = manifest, state

    @contextmanager
    def _reading(self) -> Iterator[ReadState]:
        if self._state is None:
            raise InputError("A reader is used within the block of `snapshot()` that made it.")
        yield self._state

    @contextmanager
    def _side(self, side: Side) -> Iterator[tuple[ReadState, SideSearcher]]:
        if side not in self.manifest.sets:
            raise InputError(f"This index holds {' and '.join(self.manifest.sets)}, got the side {side!r}.")
        with self._reading() as state:
            yield state, state.sides[side]

    def search(
        self,
        side: Side,
        query: NDArray[Any],
        k: int,
        *,
        where: Filter | None = None,
        mode: Mode | None = None,
        candidates: int = CANDIDATES,
    ) -> Ranking:
        with self._side(side) as (state, searcher):
            if mode == "fast":
                return _rank(state, side, k, where, lambda: [searcher.search_fast(query, k, where, candidates)])[0]
            return _rank(state, side, k, where, lambda: [searcher.search(query, k, where)])[0]

    def search_batch(self, side: Side, queries: NDArray[Any], k: int, *, where: Filter | None = None) -> list[Ranking]:
        with self._side(side) as (state, searcher):
            return _rank(state, side, k, where, lambda: searcher.search_batch(queries, k, where))

    def search_words(self, side: Side, text: str, k: int, *, where: Filter | None = None) -> list[IndexedItem]:
        with self._side(side) as (state, searcher):
            mask = searcher.mask(None)
            items = state.snapshot.search_words(text, side, k, where)
            return [item for item in items if item.position >= 0 and (mask is None or mask[item.position])]

    def has_items(self, side: Side) -> bool:
        with self._side(side) as (state, _):
            return state.snapshot.has_items(side)

    def count(self, side: Side, where: Filter | None = None) -> int:
        with self._side(side) as (_, searcher):
            return searcher.count(where)

    def sample(self, side: Side, count: int, *, where: Filter | None = None, seed: int = 0) -> list[str]:
        with self._side(side) as (state, searcher):
            return [item.id for item in state.snapshot.items(side, searcher.sample(count, where, seed))]

    def sample_scores(
        self, side: Side, query: NDArray[Any], count: int, *, where: Filter | None = None, seed: int = 0
    ) -> NDArray[np.float64]:
        with self._side(side) as (_, searcher):
            return searcher.scores(query, searcher.sample(count, where, seed))

    def matching_ids(self, side: Side, where: Filter) -> list[str]:
        with self._side(side) as (state, _):
            return state.snapshot.matching_ids(side, where)

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        with self._side(side) as (state, _):
            positions = {item.id: item.position for item in state.snapshot.find(ids, side)}
            lost = [key for key in ids if positions.get(key, -1) < 0]
            if lost:
                raise InputError(f"The index holds no {side} {lost[0]!r} that can be read. `polysem verify` says more.")
            return state.snapshot.vectors(side, [positions[key] for key in ids])

    def intact_vectors(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]:
        with self._side(side) as (state, _):
            return state.snapshot.intact_vectors(side, ids)

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
        with self._side(side) as (state, _):
            return state.snapshot.frames(side, ids)

    def find(self, ids: Iterable[str], side: Side | None = None) -> list[IndexedItem]:
        with self._reading() as state:
            return state.snapshot.find(ids, side)

    def paths(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        with self._side(side) as (state, _):
            return state.snapshot.paths(ids, side)

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        with self._side(side) as (state, searcher):
            if not state.snapshot.damaged and not searcher.unreadable:
                return state.snapshot.hashes(ids, side)
            mask = searcher.mask(None)
            # An item whose vectors are lost counts as missing: adding it again repairs the index.
            return {
                item.id: item.hash
                for item in state.snapshot.find(ids, side)
                if item.position >= 0 and (mask is None or mask[item.position])
            }

    def caption_ids(self, ids: Iterable[str]) -> list[str]:
        with self._reading() as state:
            return state.snapshot.caption_ids(ids)

    def read_value(self, name: str) -> Any:
        with self._reading() as state:
            return state.snapshot.read_value(name)

    def stats(self) -> Stats:
        with self._reading() as state:
            return state.snapshot.stats()

    def damaged_ids(self, damage: Damage) -> list[str]:
        with self._reading() as state:
            return state.snapshot.damaged_ids(damage)


def _rank(
    state: ReadState, side: Side, k: int, where: Filter | None, search: Callable[[], list[TopHits]]
) -> list[Ranking]:
    """The items and sets of what a search finds; after a check of all segments where a result shows damage."""
    snapshot, searcher = state.snapshot, state.sides[side]
    found = search()
    sets = [snapshot.vectors(side, each.positions) for each in found]
    expected = min(k, searcher.count(where))
    if any(_is_damaged(own) or len(own) < expected for own in sets) and searcher.check():
        found = search()
        sets = [snapshot.vectors(side, each.positions) for each in found]
    unreadable = state.unreadable + searcher.unreadable
    return [
        Ranking(snapshot.items(side, each.positions), each.scores, own, each.scored, unreadable)
        for each, own in zip(found, sets, strict=True)
    ]


def _is_damaged(vectors: NDArray[Any]) -> bool:
    """Whether these cannot be what was added: then a file was damaged since."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=2)
    return not bool((np.abs(norms - 1) < _NORM_ERROR).all())
