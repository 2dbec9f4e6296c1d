"""The sets of one side at one moment, over all segments: positions count on from segment to segment."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import Hits, search_many
from polysem.search.engine.checks import checked_k, checked_queries
from polysem.search.engine.top_k import best
from polysem.search.filters import Filter
from polysem.search.local.filter_cache import KEPT, Passing
from polysem.search.local.segment_searcher import Part
from polysem.search.store import Side, Snapshot
from polysem.search.vector_checks import bounded, means_of

# Rows scored at once where nothing can be ruled out.
_BLOCK = 1 << 13
# Where a filter leaves no more than this many items for each candidate, all of them are scored.
_FEW_PER_CANDIDATE = 4


class Gallery:
    def __init__(
        self, snapshot: Snapshot, side: Side, compared: Mapping[str, Any], parts: list[Part], passing: Passing
    ) -> None:
        """parts: one for each view of the side, in order. passing: what is known of filters from earlier moments."""
        self._snapshot, self._side, self._compared, self._parts = snapshot, side, compared, parts
        self._passing = passing
        self._starts = np.cumsum([0, *(len(part.vectors) for part in parts)])
        self._guard = threading.Lock()
        self._masks: OrderedDict[str, NDArray[np.bool_] | None] = OrderedDict()

    def mask(self, where: Filter | None) -> NDArray[np.bool_] | None:
        """Which positions can be searched and pass the filter; None for all."""
        key = repr(where)  # 1 and true are equal, and mean different things
        try:
            return self._masks[key]
        except KeyError:  # asked by one step, because other threads make room for theirs
            found = self._snapshot.mask(self._side)
            if where is not None:
                found &= self._passing.mask(self._snapshot, self._side, where)
            for part, start, stop in self._spans():
                found[start:stop] &= ~part.broken
            mask = None if found.all() else found
        with self._guard:
            self._masks[key] = mask
            while len(self._masks) > KEPT:
                self._masks.popitem(last=False)
        return mask

    @property
    def unreadable(self) -> int:
        """How many items are lost in damaged rows."""
        if not any(part.broken.any() for part in self._parts):
            return 0
        live = self._snapshot.mask(self._side)
        return sum(int((live[start:stop] & part.broken).sum()) for part, start, stop in self._spans())

    def check(self) -> bool:
        """Read everything, and whether rows were found damaged that were not known to be."""
        found = [part.check() for part in self._parts]  # all of them, not only up to the first
        new = any(found)
        if new:
            with self._guard:
                self._masks.clear()
        return new

    def count(self, where: Filter | None) -> int:
        mask = self.mask(where)
        return int(self._starts[-1] if mask is None else mask.sum())

    def drawn(self, count: int, where: Filter | None, seed: int) -> NDArray[np.int64]:
        """Up to `count` positions that pass the filter, at random, ascending."""
        mask = self.mask(where)
        rows = np.arange(self._starts[-1]) if mask is None else np.flatnonzero(mask)
        if count < len(rows):
            rows = np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))
        return rows

    def search(self, query: NDArray[Any], k: int, where: Filter | None) -> Hits:
        """The k best, exactly."""
        mask = self.mask(where)
        if not self._parts:
            return best(np.empty(0, np.int64), np.empty(0), checked_k(k), 0)
        if bounded(self._compared) is not None:
            engines = [part.engine for part in self._parts if part.engine is not None]
            return search_many(engines, query, k, mask)
        return self._best(self._checked(query), self.drawn(int(self._starts[-1]), where, 0), checked_k(k))

    def search_fast(self, query: NDArray[Any], k: int, where: Filter | None, candidates: int) -> Hits:
        """The k best of the items whose means are closest to the query's."""
        mask, vectors, wanted = self.mask(where), self._checked(query), max(candidates, checked_k(k))
        if mask is not None and mask.sum() <= _FEW_PER_CANDIDATE * wanted:
            return self._best(vectors, np.flatnonzero(mask), k)
        middle = means_of(vectors)
        rows, close = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for part, start, stop in self._spans():
            found, scores = part.means.candidates(middle, wanted, None if mask is None else mask[start:stop])
            rows.append(found + start)
            close.append(scores)
        every = np.concatenate(rows)[np.argsort(-np.concatenate(close), kind="stable")[:wanted]]
        return self._best(vectors, np.sort(every), k)

    def scores(self, query: NDArray[Any], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of a query (L, D) with the items at ascending positions."""
        return self._scores(self._checked(query), positions)

    def _best(self, query: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> Hits:
        """The k best of these rows, all of which are scored."""
        kept = best(np.empty(0, np.int64), np.empty(0), k, 0)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            positions = np.concatenate([kept.positions, block])
            kept = best(positions, np.concatenate([kept.scores, self._scores(query, block)]), k, len(rows))
        return kept

    def _scores(self, query: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        found = np.empty(len(positions))
        for part, start, stop in self._spans():
            here = slice(*np.searchsorted(positions, (start, stop)))
            if here.start < here.stop:
                found[here] = part.scores(query, positions[here] - start)
        return found

    def _spans(self) -> Iterator[tuple[Part, int, int]]:
        for number, part in enumerate(self._parts):
            yield part, int(self._starts[number]), int(self._starts[number + 1])

    def _checked(self, query: NDArray[Any]) -> NDArray[np.float32]:
        vectors, _ = checked_queries(np.asarray(query)[None], self._snapshot.manifest.dim)
        only: NDArray[np.float32] = vectors[0]
        return only
