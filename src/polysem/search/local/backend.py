from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.search.backend import CANDIDATES, Mode, Ranked
from polysem.search.engine import Hits
from polysem.search.filters import Filter
from polysem.search.local.build_accelerators import settle
from polysem.search.local.filter_cache import Passing
from polysem.search.local.segment_searcher import Part, is_attachment
from polysem.search.local.side_searcher import Gallery
from polysem.search.store import (
    Added,
    Batch,
    Compacted,
    Damage,
    Item,
    Manifest,
    SearchError,
    Side,
    Snapshot,
    Stats,
    Store,
    View,
    schema,
)
from polysem.search.store.entries import SIDES
from polysem.search.vector_checks import check_units

Progress = Callable[[str, int, int], None]
_DAMAGED = "damaged"
"""Name of the note that says which rows of which segment `verify` found damaged."""
_ODD = 0.02


class LocalBackend:
    """A `Backend` over a folder. Several threads may search at once; one may write."""

    modes: Sequence[Mode] = ("exact", "fast")
    keeps_frames = True

    def __init__(self, store: Store) -> None:
        self._store = store
        self.manifest, self.writable = store.manifest, store.writable
        self._guard = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._parts: dict[int, Part] = {}
        self._galleries: dict[str, Gallery] = {}
        self._passing = {side: Passing() for side in SIDES}
        self._unreadable = 0

    @classmethod
    def create(cls, folder: str | Path, manifest: Manifest) -> Self:
        return cls(Store.create(folder, manifest))

    @classmethod
    def open(cls, folder: str | Path, write: bool = False) -> Self:
        return cls(Store.open(folder, write))

    @contextmanager
    def _reading(self) -> Iterator[tuple[Snapshot, Mapping[str, Gallery]]]:
        """The newest state, held still. Segments that were there before keep what was made ready for them."""
        with self._explained(), ExitStack() as held:
            with self._guard:
                snapshot = held.enter_context(self._store.reading())
                if snapshot is not self._snapshot:
                    self._take(snapshot)
                galleries = self._galleries
            yield snapshot, galleries

    def _take(self, snapshot: Snapshot) -> None:
        parts: dict[int, Part] = {}
        galleries: dict[str, Gallery] = {}
        broken = snapshot.note(_DAMAGED) or {}
        for side in SIDES:
            views = snapshot.views(side)
            for view in views:
                known = self._parts.get(view.number)
                parts[view.number] = known if known and known.settled else self._part(view, broken)
            ordered = [parts[view.number] for view in views]
            galleries[side] = Gallery(snapshot, side, self.manifest.similarity, ordered, self._passing[side])
        self._snapshot, self._parts, self._galleries = snapshot, parts, galleries
        self._unreadable = sum(len(snapshot.among(each)) for each in snapshot.damaged)

    def _part(self, view: View, broken: Mapping[str, Any] | None = None) -> Part:
        known = (broken or {}).get(str(view.number), ())
        return Part(view, self.manifest.similarity, (range(*rows) for rows in known))

    def _explained(self) -> AbstractContextManager[None]:
        return schema.explained("read", self._store.folder)

    @contextmanager
    def _side(self, side: Side) -> Iterator[tuple[Snapshot, Gallery]]:
        if side not in self.manifest.sets:
            raise InputError(f"This index holds {' and '.join(self.manifest.sets)}, got the side {side!r}.")
        with self._reading() as (snapshot, galleries):
            yield snapshot, galleries[side]

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
        with self._side(side) as (snapshot, gallery):

            def hits() -> Hits:
                fast = mode == "fast"
                return gallery.search_fast(query, k, where, candidates) if fast else gallery.search(query, k, where)

            found = hits()
            vectors = snapshot.vectors(side, found.positions)
            if (_is_odd(vectors) or len(found.positions) < min(k, gallery.count(where))) and gallery.check():
                found = hits()
                vectors = snapshot.vectors(side, found.positions)
            items = snapshot.items(side, found.positions)
            return Ranked(items, found.scores, vectors, found.scored, self._unreadable + gallery.unreadable)

    def holds(self, side: Side) -> bool:
        with self._side(side) as (snapshot, _):
            return snapshot.holds(side)

    def count(self, side: Side, where: Filter | None = None) -> int:
        with self._side(side) as (_, gallery):
            return gallery.count(where)

    def sample(self, side: Side, count: int, *, where: Filter | None = None, seed: int = 0) -> list[str]:
        with self._side(side) as (snapshot, gallery):
            return snapshot.ids(side, gallery.drawn(count, where, seed))

    def matching(self, side: Side, where: Filter) -> list[str]:
        with self._side(side) as (snapshot, _):
            return snapshot.matching(side, where)

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        with self._side(side) as (snapshot, _):
            items = {item.id: item.position for item in snapshot.find(ids, side)}
            gone = [key for key in ids if items.get(key, -1) < 0]
            if gone:
                raise InputError(f"The index holds no {side} {gone[0]!r} that can be read. `polysem verify` says more.")
            return snapshot.vectors(side, [items[key] for key in ids])

    def sound(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]:
        with self._side(side) as (snapshot, _):
            return snapshot.sound(side, ids)

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
        with self._side(side) as (snapshot, _):
            return snapshot.frames(side, ids)

    def background(
        self, side: Side, query: NDArray[Any], count: int, *, where: Filter | None = None, seed: int = 0
    ) -> NDArray[np.float64]:
        with self._side(side) as (_, gallery):
            return gallery.scores(query, gallery.drawn(count, where, seed))

    def find(self, ids: Iterable[str], side: Side | None = None) -> list[Item]:
        with self._reading() as (snapshot, _):
            return snapshot.find(ids, side)

    def paths(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        with self._side(side) as (snapshot, _):
            return snapshot.paths(ids, side)

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        with self._side(side) as (snapshot, gallery):
            if not snapshot.damaged and not gallery.unreadable:
                return snapshot.hashes(ids, side)
            mask = gallery.mask(None)
            # An item whose vectors are lost counts as not there: adding it again mends the index.
            return {
                item.id: item.hash
                for item in snapshot.find(ids, side)
                if item.position >= 0 and (mask is None or mask[item.position])
            }

    def captions_of(self, ids: Iterable[str]) -> list[str]:
        with self._reading() as (snapshot, _):
            return snapshot.captions_of(ids)

    # --------------------------------------------------------------------------------------------------- writing

    def add(self, *batches: Batch) -> Added:
        for batch in batches:
            check_units(batch)
        return self._store.add(*batches)

    def remove(self, ids: Iterable[str], side: Side | None = None, *, texts: Iterable[str] = ()) -> int:
        return self._store.remove(ids, side, texts=texts)

    def settle(self, progress: Progress | None = None) -> None:
        """Sketch the large segments and put their means in order, where that was not done yet.

        Later segments follow the first, largest one's plan: what is added costs what it is, not what is there.
        """
        try:
            for number in settle(self._store, progress):
                self._parts.pop(number, None)
        except SearchError as error:
            raise SearchError(
                f"The items are safe in the index, but what makes searching them fast could not be written: {error} "
                "Until `polysem compact` has made it, searches are right and slower."
            ) from None

    def compact(self) -> Compacted:
        with self._guard:
            self._snapshot, self._galleries = None, {}
        return self._store.compact()

    def note(self, name: str) -> Any:
        with self._reading() as (snapshot, _):
            return snapshot.note(name)

    def write_note(self, name: str, value: Any) -> None:
        self._store.note(name, value)

    def stats(self) -> Stats:
        return self._store.stats()

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """What is damaged is left out of searches from now on and, where this may write, for good: see `hashes`."""
        with self._reading() as (snapshot, galleries):
            found = snapshot.verify(progress)
            broken: dict[str, list[list[int]]] = {str(number): [] for number in snapshot.segments}
            for damage in found:
                if damage.rows is not None and (number := snapshot.number(damage)) is not None:
                    broken[str(number)].append([damage.rows.start, damage.rows.stop])
            for gallery in galleries.values():
                gallery.check()
        broken = {number: rows for number, rows in broken.items() if rows}
        if self.writable and broken != (self.note(_DAMAGED) or {}):
            with suppress(SearchError):  # as on a full disk: what was found is told all the same
                self._store.note(_DAMAGED, broken)
        return found

    def repair(self, damage: Sequence[Damage]) -> list[Damage]:
        if self.writable and any(map(is_attachment, damage)):
            for each in damage:
                if is_attachment(each):
                    (self._store.folder / each.segment).unlink(missing_ok=True)
            with self._guard:
                self._snapshot, self._parts, self._galleries = None, {}, {}
            self.settle()
            return [each for each in damage if not is_attachment(each)]
        return list(damage)

    def among(self, damage: Damage) -> list[str]:
        with self._reading() as (snapshot, _):
            return snapshot.among(damage)

    def close(self) -> None:
        with self._guard:
            self._snapshot, self._galleries, self._parts = None, {}, {}
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def _is_odd(vectors: NDArray[Any]) -> bool:
    """Whether these cannot be what was added: then a file was damaged since."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=2)
    return not bool((np.abs(norms - 1) < _ODD).all())
