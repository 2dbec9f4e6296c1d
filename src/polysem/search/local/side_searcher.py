"""Search of one side of a snapshot over all its segments: positions count on from segment to segment."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from polysem.search.engine import TopHits, search_engines
from polysem.search.engine.engine import validate_k, validate_queries
from polysem.search.engine.scan import NO_HITS, top_k
from polysem.search.engine.scoring import Float32, Float64, Int64, Mask, find_scoring, mean_vectors
from polysem.search.filters import Filter
from polysem.search.local.segment_searcher import SegmentSearcher, search_means
from polysem.search.store import IndexedItem, Side, Snapshot

KEPT_FILTERS = 16
"""Filters whose masks are cached."""
# Rows scored at once where nothing can be pruned.
_BLOCK = 1 << 13
# Where a filter leaves no more than this many items for each candidate, all of them are scored.
_FEW_PER_CANDIDATE = 4


class FilterCache:
    """Which rows of each segment pass a filter, as packed bits, kept from one snapshot of a side to the next.

    Rows are immutable and deletes are tombstones, so after a commit only new segments have to be filtered.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._bits: LRUCache[str, dict[int, NDArray[np.uint8]]] = LRUCache(KEPT_FILTERS)

    def mask(self, snapshot: Snapshot, side: Side, where: Filter) -> Mask:
        """(rows,) of a snapshot that is held: whether each passes. Rows with a tombstone may do so too."""
        views, key = snapshot.views(side), repr(where)  # 1 and true are equal, and mean different things
        with self._guard:
            known = dict(self._bits.get(key, {}))
        new = {view.number for view in views} - known.keys()
        if new:
            known |= {number: np.packbits(rows) for number, rows in snapshot.filter_rows(side, where, new).items()}
        with self._guard:
            self._bits[key] = {view.number: known[view.number] for view in views}
        masks = (np.unpackbits(known[view.number], count=view.rows).view(np.bool_) for view in views)
        return np.concatenate([np.empty(0, np.bool_), *masks])


class SideSearcher:
    """All segments of one side at one snapshot."""

    def __init__(self, snapshot: Snapshot, side: Side, segments: list[SegmentSearcher], filters: FilterCache) -> None:
        """segments: one for each view of the side, in order. filters: shared with earlier snapshots."""
        self._snapshot, self._side, self.segments, self._filters = snapshot, side, segments, filters
        starts = np.cumsum([0, *(len(segment.vectors) for segment in segments)]).tolist()
        self._size, self._spans = starts[-1], list(zip(segments, starts, starts[1:], strict=False))
        self._guard = threading.Lock()
        self._masks: LRUCache[str, Mask | None] = LRUCache(KEPT_FILTERS)

    def mask(self, where: Filter | None) -> Mask | None:
        """Which positions can be searched and pass the filter; None for all."""
        key = repr(where)  # 1 and true are equal, and mean different things
        with self._guard:
            if key in self._masks:
                return self._masks[key]
        alive = self._snapshot.mask(self._side)
        if where is not None:
            alive &= self._filters.mask(self._snapshot, self._side, where)
        for segment, start, stop in self._spans:
            alive[start:stop] &= ~segment.damaged
        mask = None if alive.all() else alive
        with self._guard:
            self._masks[key] = mask
        return mask

    def drop_unreadable(self, items: Iterable[IndexedItem]) -> list[IndexedItem]:
        """Those of these items whose vectors can be read."""
        mask = self.mask(None)
        return [item for item in items if item.position >= 0 and (mask is None or mask[item.position])]

    @property
    def unreadable(self) -> int:
        """How many items are lost in damaged rows."""
        if not any(segment.damaged.any() for segment in self.segments):
            return 0
        live = self._snapshot.mask(self._side)
        return sum(int((live[start:stop] & segment.damaged).sum()) for segment, start, stop in self._spans)

    def check(self) -> bool:
        """Verify all segments; whether rows are damaged that were not known to be."""
        damaged = [segment.check() for segment in self.segments]  # all of them, not only up to the first
        if any(damaged):
            with self._guard:
                self._masks.clear()
        return any(damaged)

    def count(self, where: Filter | None) -> int:
        mask = self.mask(where)
        return int(self._size if mask is None else mask.sum())

    def sample(self, count: int, where: Filter | None, seed: int) -> Int64:
        """Up to `count` random positions that pass the filter, ascending."""
        mask = self.mask(where)
        rows = np.arange(self._size) if mask is None else np.flatnonzero(mask)
        if count < len(rows):
            rows = np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))
        return rows

    def search(self, query: NDArray[Any], k: int, where: Filter | None) -> TopHits:
        """The k best for a query (L, D), exactly."""
        mask, count = self.mask(where), validate_k(k)
        if not self.segments:
            return NO_HITS
        engines = [segment.engine for segment in self.segments if segment.engine is not None]
        if engines:
            return search_engines(engines, query, k, mask)
        return self._rescore(self._validate(query), self.sample(self._size, where, 0), count)

    def search_batch(self, queries: NDArray[Any], k: int, where: Filter | None) -> list[TopHits]:
        """`search` for many queries (Q, L, D): the same positions and scores, bit for bit.

        Each segment takes all queries in one go, and the exact scores of its k best merge.
        """
        if not self.segments or find_scoring(self._snapshot.manifest.similarity) is None:
            return [self.search(query, k, where) for query in queries]
        mask, merged = self.mask(where), [NO_HITS] * len(queries)
        for segment, start, stop in self._spans:
            if segment.engine is not None:
                own = segment.engine.search_batch(queries, k, None if mask is None else mask[start:stop])
                for number, (one, other) in enumerate(zip(merged, own, strict=True)):
                    positions = np.concatenate([one.positions, other.positions + start])
                    scores = np.concatenate([one.scores, other.scores])
                    merged[number] = top_k(positions, scores, k, one.scored + other.scored)
        return merged

    def search_fast(self, query: NDArray[Any], k: int, where: Filter | None, candidates: int) -> TopHits:
        """The k best of the items whose means are closest to the query's."""
        mask, vectors, wanted = self.mask(where), self._validate(query), max(candidates, validate_k(k))
        if mask is not None and mask.sum() <= _FEW_PER_CANDIDATE * wanted:
            return self._rescore(vectors, np.flatnonzero(mask), k)
        mean = mean_vectors(vectors)
        rows, products = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for segment, start, stop in self._spans:
            own, close = search_means(segment.means, mean, wanted, None if mask is None else mask[start:stop])
            rows.append(own + start)
            products.append(close)
        best = np.concatenate(rows)[np.argsort(-np.concatenate(products), kind="stable")[:wanted]]
        return self._rescore(vectors, np.sort(best), k)

    def scores(self, query: NDArray[Any], positions: Int64) -> Float64:
        """Exact scores of a query (L, D) with the items at ascending positions."""
        return self._score(self._validate(query), positions)

    def _rescore(self, query: Float32, rows: Int64, k: int) -> TopHits:
        """The k best of these rows, all of which are scored."""
        kept = NO_HITS
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            positions = np.concatenate([kept.positions, block])
            kept = top_k(positions, np.concatenate([kept.scores, self._score(query, block)]), k, len(rows))
        return kept

    def _score(self, query: Float32, positions: Int64) -> Float64:
        scores = np.empty(len(positions))
        for segment, start, stop in self._spans:
            here = slice(*np.searchsorted(positions, (start, stop)))
            if here.start < here.stop:
                scores[here] = segment.scores(query, positions[here] - start)
        return scores

    def _validate(self, query: NDArray[Any]) -> Float32:
        vectors, _ = validate_queries(np.asarray(query)[None], self._snapshot.manifest.dim)
        return vectors.reshape(vectors.shape[1:])
