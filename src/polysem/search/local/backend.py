from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.search.backend import CANDIDATES, Mode, Ranked
from polysem.search.engine import Engine
from polysem.search.filters import Filter
from polysem.search.local.gallery import Gallery
from polysem.search.local.means import Means
from polysem.search.local.part import ENGINE, MEANS, Part, missing
from polysem.search.sets import check_units
from polysem.search.store import Added, Batch, Compacted, Damage, Item, Manifest, Side, Snapshot, Stats, Store, View
from polysem.search.store.entries import SIDES

Progress = Callable[[str, int, int], None]
_ASKED = 8
"""Sets of the other side that an engine is measured with."""


class LocalBackend:
    """A `Backend` over a folder. Several threads may search at once; one may write."""

    modes: Sequence[Mode] = ("exact", "fast")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.manifest, self.writable = store.manifest, store.writable
        self._guard = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._parts: dict[int, Part] = {}
        self._galleries: dict[str, Gallery] = {}
        self._unreadable = 0

    @classmethod
    def create(cls, folder: str | Path, manifest: Manifest) -> Self:
        return cls(Store.create(folder, manifest))

    @classmethod
    def open(cls, folder: str | Path, write: bool = False) -> Self:
        return cls(Store.open(folder, write))

    def _now(self) -> tuple[Snapshot, dict[str, Gallery]]:
        """The newest state. Segments that were there before keep what was made ready for them."""
        with self._guard:
            snapshot = self._store.snapshot()
            if snapshot is not self._snapshot:
                parts: dict[int, Part] = {}
                galleries: dict[str, Gallery] = {}
                for side in SIDES:
                    views = snapshot.views(side)
                    for view in views:
                        known = self._parts.get(view.number)
                        parts[view.number] = known if known and known.settled else self._part(view)
                    ordered = [parts[view.number] for view in views]
                    galleries[side] = Gallery(snapshot, side, self.manifest.similarity, ordered)
                self._snapshot, self._parts, self._galleries = snapshot, parts, galleries
                self._unreadable = sum(len(snapshot.among(each)) for each in snapshot.damaged)
            return snapshot, self._galleries

    def _part(self, view: View) -> Part:
        return Part(view, self.manifest.similarity)

    def _side(self, side: Side) -> tuple[Snapshot, Gallery]:
        if side not in self.manifest.sets:
            raise InputError(f"This index holds {' and '.join(self.manifest.sets)}, got the side {side!r}.")
        snapshot, galleries = self._now()
        return snapshot, galleries[side]

    # ------------------------------------------------------------------------------------------------- searching

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
        snapshot, gallery = self._side(side)
        fast = mode == "fast"
        hits = gallery.search_fast(query, k, where, candidates) if fast else gallery.search(query, k, where)
        sets = snapshot.vectors(side, hits.positions)
        return Ranked(snapshot.items(side, hits.positions), hits.scores, sets, hits.scored, self._unreadable)

    def count(self, side: Side, where: Filter | None = None) -> int:
        return self._side(side)[1].count(where)

    def sample(self, side: Side, count: int, *, where: Filter | None = None, seed: int = 0) -> list[str]:
        snapshot, gallery = self._side(side)
        return snapshot.ids(side, gallery.drawn(count, where, seed))

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        snapshot, _ = self._side(side)
        items = {item.id: item.position for item in snapshot.find(ids, side)}
        gone = [key for key in ids if items.get(key, -1) < 0]
        if gone:
            raise InputError(f"The index holds no {side} {gone[0]!r} that can be read. `polysem verify` says more.")
        return snapshot.vectors(side, [items[key] for key in ids])

    def background(
        self, side: Side, query: NDArray[Any], count: int, *, where: Filter | None = None, seed: int = 0
    ) -> NDArray[np.float64]:
        gallery = self._side(side)[1]
        return gallery.scores(query, gallery.drawn(count, where, seed))

    def find(self, ids: Iterable[str], side: Side | None = None) -> list[Item]:
        return self._now()[0].find(ids, side)

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        return self._now()[0].hashes(ids, side)

    def captions_of(self, ids: Iterable[str]) -> list[str]:
        return self._now()[0].captions_of(ids)

    # --------------------------------------------------------------------------------------------------- writing

    def add(self, *batches: Batch) -> Added:
        for batch in batches:
            check_units(batch)
        return self._store.add(*batches)

    def remove(self, ids: Iterable[str], side: Side | None = None) -> int:
        return self._store.remove(ids, side)

    def settle(self, progress: Progress | None = None) -> None:
        """Sketch the large segments and put their means in order, where that was not done yet.

        Later segments follow the first, largest one's plan: what is added costs what it is, not what is there.
        """
        snapshot = self._store.snapshot()
        views = [view for side in SIDES for view in snapshot.views(side)]
        todo = [(view, names) for view in views if (names := missing(view, self.manifest.similarity))]
        for done, (view, names) in enumerate(todo):
            if progress is not None:
                progress("preparing", done, len(todo))
            if ENGINE in names:
                example = self._example(snapshot, view.side, view.rows)
                asked = self._others(snapshot, view.side)
                engine = Engine.build(view.vectors, self.manifest.similarity, like=example, asked=asked)
                self._store.attach(view.number, ENGINE, *engine.state())
            if MEANS in names:
                self._store.attach(view.number, MEANS, *Means.build(view.vectors).state())
            self._parts.pop(view.number, None)
        if todo:
            # A commit, so that readers in other processes look again.
            self._store.note("settled", max(view.number for view, _ in todo))

    def _others(self, snapshot: Snapshot, side: Side) -> NDArray[Any] | None:
        """A few sets of the other side: what this side will mostly be searched with."""
        other = next(each for each in SIDES if each != side)
        views = [view for view in snapshot.views(other) if view.rows]
        return views[0].vectors[:: max(1, views[0].rows // _ASKED)][:_ASKED] if views else None

    def _example(self, snapshot: Snapshot, side: Side, rows: int) -> Engine | None:
        """An engine that was measured on at least a quarter as many items of the same side."""
        for view in snapshot.views(side):
            if 4 * view.rows >= rows and not missing(view, self.manifest.similarity):
                engine = self._part(view).engine
                if engine is not None and engine.plan.kept:
                    return engine
        return None

    def compact(self) -> Compacted:
        with self._guard:
            self._snapshot, self._galleries = None, {}
        return self._store.compact()

    def note(self, name: str) -> Any:
        return self._now()[0].note(name)

    def write_note(self, name: str, value: Any) -> None:
        self._store.note(name, value)

    def stats(self) -> Stats:
        return self._store.stats()

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        return self._store.verify()

    def among(self, damage: Damage) -> list[str]:
        return self._now()[0].among(damage)

    def close(self) -> None:
        with self._guard:
            self._snapshot, self._galleries, self._parts = None, {}, {}
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
