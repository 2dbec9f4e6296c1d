"""`LocalBackend`: an index in a folder. Every reading method sees one snapshot, be it pinned or the newest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.progress import Progress
from polysem.search.backend import CANDIDATES, IndexReader, Mode, RankedItems
from polysem.search.engine import TopHits
from polysem.search.engine.scoring import Float64
from polysem.search.filters import Filter
from polysem.search.local.searcher import FilterCache, SegmentSearcher, SideSearcher, build_accelerators, is_attachment
from polysem.search.store.entries import SIDES, IndexedItem, Manifest, Side, VectorBatch, check_units
from polysem.search.store.errors import SearchError, explain_errors
from polysem.search.store.segments import Damage
from polysem.search.store.snapshot import Snapshot
from polysem.search.store.store import Store
from polysem.search.store.writer import AddCounts, CompactReport

P = ParamSpec("P")
T = TypeVar("T")
_NORM_ERROR = 0.02
_DAMAGED = "damaged"
"""Name of the stored value that says which rows of which segment `verify` found damaged."""


class ReadState(NamedTuple):
    """A snapshot that is held, the searcher of each side, and how many items are in segments that cannot be read."""

    snapshot: Snapshot
    sides: Mapping[str, SideSearcher]
    unreadable: int


def _read(method: Callable[Concatenate[Snapshot, P], T]) -> Callable[Concatenate[LocalReader, P], T]:
    """A method of a snapshot as a method of its reader."""

    def read(self: LocalReader, /, *args: P.args, **options: P.kwargs) -> T:
        with self._reading() as state:
            return method(state.snapshot, *args, **options)

    return read


class LocalReader:
    """An `IndexReader` pinned to one snapshot. `LocalBackend` inherits it and reads the newest one in each call."""

    modes: Sequence[Mode] = ("exact", "fast")

    def __init__(self, manifest: Manifest, state: ReadState | None = None) -> None:
        self.manifest, self._state = manifest, state

    has_items = _read(Snapshot.has_items)
    matching_ids = _read(Snapshot.matching_ids)
    intact_vectors = _read(Snapshot.intact_vectors)
    frames = _read(Snapshot.frames)
    find = _read(Snapshot.find)
    paths = _read(Snapshot.paths)
    caption_ids = _read(Snapshot.caption_ids)
    read_value = _read(Snapshot.read_value)
    stats = _read(Snapshot.stats)
    damaged_ids = _read(Snapshot.damaged_ids)

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
    ) -> RankedItems:
        with self._side(side) as (state, searcher):
            search = partial(searcher.search, query, k, where)
            if mode == "fast":
                search = partial(searcher.search_fast, query, k, where, candidates)
            return _rank(state, side, k, where, lambda: [search()])[0]

    def search_batch(
        self, side: Side, queries: NDArray[Any], k: int, *, where: Filter | None = None
    ) -> list[RankedItems]:
        with self._side(side) as (state, searcher):
            return _rank(state, side, k, where, lambda: searcher.search_batch(queries, k, where))

    def search_words(self, side: Side, text: str, k: int, *, where: Filter | None = None) -> list[IndexedItem]:
        with self._side(side) as (state, searcher):
            return searcher.drop_unreadable(state.snapshot.search_words(text, side, k, where))

    def count(self, side: Side, where: Filter | None = None) -> int:
        with self._side(side) as (_, searcher):
            return searcher.count(where)

    def sample(self, side: Side, count: int, *, where: Filter | None = None, seed: int = 0) -> list[str]:
        with self._side(side) as (state, searcher):
            return [item.id for item in state.snapshot.items(side, searcher.sample(count, where, seed))]

    def sample_scores(
        self, side: Side, query: NDArray[Any], count: int, *, where: Filter | None = None, seed: int = 0
    ) -> Float64:
        with self._side(side) as (_, searcher):
            return searcher.scores(query, searcher.sample(count, where, seed))

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        with self._side(side) as (state, _):
            positions = {item.id: item.position for item in state.snapshot.find(ids, side)}
            lost = [key for key in ids if positions.get(key, -1) < 0]
            if lost:
                raise InputError(f"The index holds no {side} {lost[0]!r} that can be read. `polysem verify` says more.")
            return state.snapshot.vectors(side, [positions[key] for key in ids])

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        with self._side(side) as (state, searcher):
            if not state.snapshot.damaged and not searcher.unreadable:
                return state.snapshot.hashes(ids, side)
            # An item whose vectors are lost counts as missing: adding it again repairs the index.
            return {item.id: item.hash for item in searcher.drop_unreadable(state.snapshot.find(ids, side))}


def _rank(
    state: ReadState, side: Side, k: int, where: Filter | None, search: Callable[[], list[TopHits]]
) -> list[RankedItems]:
    """The items and sets of what a search finds; after a check of all segments where a result shows damage."""
    snapshot, searcher = state.snapshot, state.sides[side]
    hits = search()
    sets = [snapshot.vectors(side, each.positions) for each in hits]
    expected = min(k, searcher.count(where))
    # Vectors that cannot be what was added: then a file was damaged since.
    norms = [np.linalg.norm(own.astype(np.float64), axis=2) for own in sets]
    intact = all(len(own) >= expected and (np.abs(own - 1) < _NORM_ERROR).all() for own in norms)
    if not intact and searcher.check():
        hits = search()
        sets = [snapshot.vectors(side, each.positions) for each in hits]
    unreadable = state.unreadable + searcher.unreadable
    return [
        RankedItems(snapshot.items(side, each.positions), each.scores, own, each.scored, unreadable)
        for each, own in zip(hits, sets, strict=True)
    ]


class LocalBackend(LocalReader):
    """A `Backend` over a folder. Several threads may search at once; one may write.

    What was prepared for a segment is kept from snapshot to snapshot.
    """

    keeps_frames = True

    def __init__(self, store: Store) -> None:
        super().__init__(store.manifest)
        self._store, self.writable = store, store.writable
        self._guard = threading.Lock()
        self._newest: ReadState | None = None
        self._segments: dict[int, SegmentSearcher] = {}
        self._filters = {side: FilterCache() for side in SIDES}

    @classmethod
    def create(cls, folder: str | Path, manifest: Manifest) -> Self:
        return cls(Store.create(folder, manifest))

    @classmethod
    def open(cls, folder: str | Path, write: bool = False) -> Self:
        return cls(Store.open(folder, write))

    @contextmanager
    def snapshot(self) -> Iterator[IndexReader]:
        with self._reading() as state:
            yield LocalReader(self.manifest, state)

    @contextmanager
    def _reading(self) -> Iterator[ReadState]:
        """The newest snapshot, held."""
        with explain_errors("read", self._store.folder), ExitStack() as held:
            with self._guard:
                snapshot = held.enter_context(self._store.reading())
                if self._newest is None or snapshot is not self._newest.snapshot:
                    self._newest = self._prepare(snapshot)
                state = self._newest
            yield state

    def _prepare(self, snapshot: Snapshot) -> ReadState:
        segments: dict[int, SegmentSearcher] = {}
        sides: dict[str, SideSearcher] = {}
        damaged: Mapping[str, Any] = snapshot.read_value(_DAMAGED) or {}
        for side in SIDES:
            views = snapshot.views(side)
            for view in views:
                known = self._segments.get(view.number)
                if known is None or not known.is_complete:
                    rows = (range(*each) for each in damaged.get(str(view.number), ()))
                    known = SegmentSearcher(view, self.manifest.similarity, rows)
                segments[view.number] = known
            ordered = [segments[view.number] for view in views]
            sides[side] = SideSearcher(snapshot, side, ordered, self._filters[side])
        self._segments = segments
        return ReadState(snapshot, sides, sum(len(snapshot.damaged_ids(each)) for each in snapshot.damaged))

    def _forget(self) -> None:
        with self._guard:
            self._newest, self._segments = None, {}

    def add(self, *batches: VectorBatch) -> AddCounts:
        for batch in batches:
            check_units(batch)
        return self._store.add(*batches)

    def remove(self, ids: Iterable[str], side: Side | None = None, *, texts: Iterable[str] = ()) -> int:
        return self._store.remove(ids, side, texts=texts)

    def write_value(self, name: str, value: Any) -> None:
        self._store.write_value(name, value)

    def optimize(self, progress: Progress | None = None) -> None:
        try:
            for number in build_accelerators(self._store, progress):
                self._segments.pop(number, None)
        except SearchError as error:
            why = f"The items are safe in the index, but its accelerators could not be written: {error}"
            raise SearchError(f"{why} Until `polysem compact` has built them, searches are right and slower.") from None

    def compact(self) -> CompactReport:
        with self._guard:
            self._newest = None
        return self._store.compact()

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Damaged rows are left out of searches from now on and, where this may write, for good: see `hashes`."""
        with self._reading() as state:
            damage = state.snapshot.verify(progress)
            rows: dict[str, list[list[int]]] = {}
            for each in damage:
                if each.rows is not None and each.number is not None:
                    rows.setdefault(str(each.number), []).append([each.rows.start, each.rows.stop])
            for searcher in state.sides.values():
                searcher.check()
        if self.writable and rows != (self.read_value(_DAMAGED) or {}):
            with suppress(SearchError):  # as on a full disk: what was found is reported all the same
                self._store.write_value(_DAMAGED, rows)
        return damage

    def repair(self, damage: Sequence[Damage]) -> list[Damage]:
        attached = [each for each in damage if is_attachment(each)]
        if not self.writable or not attached:
            return list(damage)
        for each in attached:
            (self._store.folder / each.segment).unlink(missing_ok=True)
        self._forget()
        self.optimize()
        return [each for each in damage if not is_attachment(each)]

    def close(self) -> None:
        self._forget()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
