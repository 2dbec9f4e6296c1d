"""Relevance: for every query, the positions of its right answers (positives) in the gallery."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polysem.errors import InputError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Relevance:
    """Positives of Q queries over a gallery, query after query.

    starts: (Q + 1,); those of query q are positives[starts[q] : starts[q + 1]], in ascending order, each once.
    A query may have none: it is then left out of every metric, and counted.
    """

    starts: Ints
    positives: Ints
    gallery: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> Ints:
        """(Q,) how many positives each query has."""
        return np.diff(self.starts)

    @property
    def queries(self) -> Ints:
        """(P,) the query of each positive."""
        return np.repeat(np.arange(len(self)), self.counts)

    def of(self, query: int) -> Ints:
        return self.positives[self.starts[query] : self.starts[query + 1]]

    @classmethod
    def from_pairs(cls, queries: npt.ArrayLike, positives: npt.ArrayLike, shape: tuple[int, int]) -> Relevance:
        """Pairs in any order, repetitions included. shape: (queries, gallery)."""
        rows, columns = np.asarray(queries, dtype=np.int64).ravel(), np.asarray(positives, dtype=np.int64).ravel()
        if len(rows) != len(columns):
            raise InputError(f"Every positive needs its query: got {len(columns)} positives and {len(rows)} queries.")
        for name, positions, size in (("query", rows, shape[0]), ("positive", columns, shape[1])):
            outside = positions[(positions < 0) | (positions >= size)]
            if len(outside):
                raise InputError(
                    f"{len(outside)} {name} position(s) are not among the {size} there are, e.g. {outside[0]}."
                )
        flat = np.unique(rows * shape[1] + columns)
        starts = np.searchsorted(flat, np.arange(shape[0] + 1) * shape[1])
        return cls(starts.astype(np.int64), flat % max(1, shape[1]), shape[1])

    @classmethod
    def from_lists(cls, positives: Iterable[Sequence[int]], gallery: int) -> Relevance:
        """One list of gallery positions per query.

        Example:
            >>> Relevance.from_lists([[2], [0, 1]], gallery=3).counts.tolist()
            [1, 2]
        """
        lists = [list(each) for each in positives]
        queries = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
        return cls.from_pairs(queries, [position for each in lists for position in each], (len(lists), gallery))

    @classmethod
    def from_mask(cls, mask: npt.ArrayLike) -> Relevance:
        """(Q, G) of truth values."""
        flags = np.asarray(mask, dtype=bool)
        if flags.ndim != 2:
            raise InputError(f"A mask of positives is (queries, gallery), got shape {flags.shape}.")
        queries, positives = np.nonzero(flags)
        return cls.from_pairs(queries, positives, (flags.shape[0], flags.shape[1]))

    def transpose(self) -> Relevance:
        """The same pairs in the other direction: what was the gallery are now the queries."""
        return Relevance.from_pairs(self.positives, self.queries, (self.gallery, len(self)))
