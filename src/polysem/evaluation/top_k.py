"""The k highest scores of every query, kept while blocks of scores are computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polysem.evaluation.score_matrix import Floats, Ints

_PENDING = 4
"""Candidates, in multiples of what is kept, to gather before they are sorted in."""
_GROUPS = 16
"""Groups of rows, in multiples of k, whose maxima are compared to find a lower bound."""


class TopK:
    """The k highest scores of each query. Of equal scores at the edge, any may stay.

    A score that is no higher than the query's floor, the lowest that is kept, is dropped at once; the others wait
    until there are enough to sort in. floor: (queries,) where another `TopK` keeps higher ones, its floor.
    """

    def __init__(self, queries: int, k: int, floor: Floats | None = None) -> None:
        self.k = k
        self.values = np.full((queries, k), -np.inf, dtype=np.float32)
        self.ids = np.full((queries, k), -1, dtype=np.int64)
        self.floor = np.full(queries, -np.inf, dtype=np.float32) if floor is None else floor.copy()
        self._pending: list[tuple[Ints, Ints, Floats]] = []
        self._waiting = 0

    def rank(self) -> tuple[Ints, Floats]:
        """ids and scores from high to low, equal scores in order of their ids; -1 and -inf where there were fewer."""
        self.flush()
        order = np.lexsort((self.ids, self.ids < 0, -self.values), axis=1)
        return np.take_along_axis(self.ids, order, 1), np.take_along_axis(self.values, order, 1)

    def add_rows(self, queries: Ints, ids: Ints, scores: Floats) -> None:
        """scores: (len(queries), len(ids))."""
        rows, columns = _nonzero(scores > self.floor[queries, None])
        self._add(queries[rows], ids[columns], scores[rows, columns])

    def add_columns(self, ids: Ints, queries: Ints, scores: Floats) -> None:
        """scores: (len(ids), len(queries))."""
        rows, columns = _nonzero(scores > np.maximum(self.floor[queries], _lower_bound(scores, self.k)))
        self._add(queries[columns], ids[rows], scores[rows, columns])

    def set_rows(self, queries: Ints, ids: Ints, scores: Floats) -> None:
        """The first scores of these queries, (len(queries), len(ids)): there is nothing to compare them with yet."""
        kept = min(self.k, len(ids))
        columns = np.argpartition(scores, len(ids) - kept, axis=1)[:, len(ids) - kept :]
        with np.errstate(over="ignore"):  # doubles beyond float32 are infinite here
            self.values[queries[:, None], np.arange(kept)] = np.take_along_axis(scores, columns, 1)
        self.ids[queries[:, None], np.arange(kept)] = ids[columns]
        self.floor[queries] = self.values[queries].min(1)

    def merge(self, other: TopK) -> None:
        other.flush()
        rows, columns = np.nonzero(other.ids >= 0)
        self._add(rows, other.ids[rows, columns], other.values[rows, columns])
        self.flush()

    def _add(self, queries: Ints, ids: Ints, values: Floats) -> None:
        self._pending.append((queries, ids, values))
        self._waiting += len(queries)
        if self._waiting > max(_PENDING * self.ids.size, 1 << 16):
            self.flush()

    def flush(self) -> None:
        """Sort in what waits: only then do `values` and `ids` reflect all scores."""
        if not self._waiting:
            return
        queries, ids, values = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._waiting = [], 0
        changed = np.flatnonzero(np.bincount(queries, minlength=len(self.values)))
        queries = np.concatenate([np.repeat(changed, self.k), queries])
        ids = np.concatenate([self.ids[changed].ravel(), ids])
        with np.errstate(over="ignore"):
            values = np.concatenate([self.values[changed].ravel(), values.astype(np.float32)])
        # By query, then from high to low: one integer key for both sorts much faster than two sorts do.
        order = np.argsort(queries.astype(np.uint64) << np.uint64(32) | sort_keys(values))
        first = np.searchsorted(queries[order], changed)
        kept = order[first[:, None] + np.arange(self.k)]
        self.values[changed], self.ids[changed] = values[kept], ids[kept]
        self.floor[changed] = np.maximum(self.floor[changed], values[kept[:, -1]])


def sort_keys(scores: Floats) -> npt.NDArray[np.uint32]:
    """Unsigned integers that rise where float32 scores fall."""
    bits = (scores + np.float32(0)).view(np.int32)  # no minus zero
    return np.where(bits < 0, bits.view(np.uint32), np.uint32(0x7FFFFFFF) - bits.view(np.uint32))


def _lower_bound(scores: Floats, k: int) -> Floats:
    """(i, q) -> (q,) a value just below the k-th highest of the maxima of groups of rows, so below the k-th highest of
    each column, found with little work."""
    groups = _GROUPS * k
    size = len(scores) // groups
    if size < 2:
        return np.full(scores.shape[1], -np.inf, dtype=np.float32)
    highest = scores[: groups * size].reshape(groups, size, -1).max(1)
    with np.errstate(over="ignore"):
        bound = np.partition(highest, groups - k, axis=0)[groups - k].astype(np.float32)
    below: Floats = np.nextafter(bound, np.float32(-np.inf))
    return below


def _nonzero(mask: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """`np.nonzero`, faster."""
    rows, columns = np.divmod(np.flatnonzero(mask), mask.shape[1])
    return rows, columns
