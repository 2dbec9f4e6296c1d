"""The highest scores of every query, kept while the scores go by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polysem.evaluation.relevance import Ints
from polysem.evaluation.score_matrix import Floats

_PENDING = 4
"""Candidates, in multiples of what is kept, to gather before they are sorted in."""
_GROUPS = 16
"""Groups of rows, in multiples of k, whose highest are compared to find a floor."""


class Best:
    """The k highest of each query. Of equal scores at the edge, any may stay.

    A score that is no higher than the query's floor, the lowest that is kept, is never looked at again; the others wait
    until it is worth sorting them in.
    """

    def __init__(self, queries: int, k: int, floor: Floats | None = None) -> None:
        """floor: what is known to be of no use, from scores that someone else keeps."""
        self.k = k
        self.values = np.full((queries, k), -np.inf, dtype=np.float32)
        self.ids = np.full((queries, k), -1, dtype=np.int64)
        self.floor = np.full(queries, -np.inf, dtype=np.float32) if floor is None else floor.copy()
        self._pending: list[tuple[Ints, Ints, Floats]] = []
        self._waiting = 0

    def ranked(self) -> tuple[Ints, Floats]:
        """ids and scores from high to low, equal scores in order of their ids; -1 and -inf where fewer went by."""
        self.settle()
        order = np.lexsort((self.ids, self.ids < 0, -self.values), axis=1)
        return np.take_along_axis(self.ids, order, 1), np.take_along_axis(self.values, order, 1)

    def offer_rows(self, queries: Ints, ids: Ints, scores: Floats) -> None:
        """scores: (len(queries), len(ids))."""
        rows, columns = _places(scores > self.floor[queries, None])
        self._offer(queries[rows], ids[columns], scores[rows, columns])

    def offer_columns(self, ids: Ints, queries: Ints, scores: Floats) -> None:
        """scores: (len(ids), len(queries))."""
        rows, columns = _places(scores > np.maximum(self.floor[queries], _bound(scores, self.k)))
        self._offer(queries[columns], ids[rows], scores[rows, columns])

    def begin_rows(self, queries: Ints, ids: Ints, scores: Floats) -> None:
        """The first scores of these queries: only the highest are worth being offered."""
        kept = min(self.k, len(ids))
        places = np.argpartition(scores, len(ids) - kept, axis=1)[:, len(ids) - kept :]
        with np.errstate(over="ignore"):  # doubles beyond float32 are infinite here
            self.values[queries[:, None], np.arange(kept)] = np.take_along_axis(scores, places, 1)
        self.ids[queries[:, None], np.arange(kept)] = ids[places]
        self.floor[queries] = self.values[queries].min(1)

    def join(self, other: Best) -> None:
        other.settle()
        rows, columns = np.nonzero(other.ids >= 0)
        self._offer(rows, other.ids[rows, columns], other.values[rows, columns])
        self.settle()

    def _offer(self, queries: Ints, ids: Ints, values: Floats) -> None:
        self._pending.append((queries, ids, values))
        self._waiting += len(queries)
        if self._waiting > max(_PENDING * self.ids.size, 1 << 16):
            self.settle()

    def settle(self) -> None:
        """Sort in what waits: only then do `values` and `ids` hold all that went by."""
        if not self._waiting:
            return
        queries, ids, values = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._waiting = [], 0
        found = np.flatnonzero(np.bincount(queries, minlength=len(self.values)))
        queries = np.concatenate([np.repeat(found, self.k), queries])
        ids = np.concatenate([self.ids[found].ravel(), ids])
        with np.errstate(over="ignore"):
            values = np.concatenate([self.values[found].ravel(), values.astype(np.float32)])
        # By query, then from high to low: one whole number for both sorts much faster than two sorts do.
        bits = (values + np.float32(0)).view(np.int32)  # no minus zero
        falling = np.where(bits < 0, bits.view(np.uint32), np.uint32(0x7FFFFFFF) - bits.view(np.uint32))
        order = np.argsort(queries.astype(np.uint64) << np.uint64(32) | falling)
        first = np.searchsorted(queries[order], found)
        kept = order[first[:, None] + np.arange(self.k)]
        self.values[found], self.ids[found] = values[kept], ids[kept]
        self.floor[found] = np.maximum(self.floor[found], values[kept[:, -1]])


def _bound(scores: Floats, k: int) -> Floats:
    """(i, q) -> (q,) something below the k-th highest of each column, found with little work: of the highest of each
    group of rows, the k-th."""
    groups = _GROUPS * k
    size = len(scores) // groups
    if size < 2:
        return np.full(scores.shape[1], -np.inf, dtype=np.float32)
    highest = scores[: groups * size].reshape(groups, size, -1).max(1)
    with np.errstate(over="ignore"):
        bound = np.partition(highest, groups - k, axis=0)[groups - k].astype(np.float32)
    below: Floats = np.nextafter(bound, np.float32(-np.inf))
    return below


def _places(mask: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    rows, columns = np.divmod(np.flatnonzero(mask), mask.shape[1])
    return rows, columns
