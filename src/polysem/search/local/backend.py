"""`LocalBackend`: an index in a folder, with what was prepared for its segments kept from snapshot to snapshot."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from polysem.progress import Progress
from polysem.search.backend import IndexReader
from polysem.search.local.reader import LocalReader, ReadState
from polysem.search.local.segment_searcher import SegmentSearcher, build_accelerators, is_attachment
from polysem.search.local.side_searcher import FilterCache, SideSearcher
from polysem.search.store import (
    AddCounts,
    CompactReport,
    Damage,
    Manifest,
    SearchError,
    Side,
    Snapshot,
    Store,
    VectorBatch,
)
from polysem.search.store.entries import SIDES, check_units
from polysem.search.store.schema import explain_errors

_DAMAGED = "damaged"
"""Name of the stored value that says which rows of which segment `verify` found damaged."""


class LocalBackend(LocalReader):
    """A `Backend` over a folder. Several threads may search at once; one may write."""

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
        """The newest snapshot, held. Segments that were in the one before keep what was prepared for them."""
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

    def optimize(self, progress: Progress | None = None) -> None:
        try:
            for number in build_accelerators(self._store, progress):
                self._segments.pop(number, None)
        except SearchError as error:
            raise SearchError(
                f"The items are safe in the index, but its accelerators could not be written: {error} Until `polysem "
                "compact` has built them, searches are right and slower."
            ) from None

    def compact(self) -> CompactReport:
        with self._guard:
            self._newest = None
        return self._store.compact()

    def write_value(self, name: str, value: Any) -> None:
        self._store.write_value(name, value)

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Damaged rows are left out of searches from now on and, where this may write, for good: see `hashes`."""
        with self._reading() as state:
            damage = state.snapshot.verify(progress)
            rows: dict[str, list[list[int]]] = {}
            for each in damage:
                number = state.snapshot.segment_number(each)
                if each.rows is not None and number is not None:
                    rows.setdefault(str(number), []).append([each.rows.start, each.rows.stop])
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
