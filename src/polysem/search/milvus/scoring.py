"""The exact score of candidates, and the best of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polysem.search.backend import Ranked
from polysem.search.engine import exact
from polysem.search.engine.checks import checked_k, checked_queries
from polysem.search.engine.scan_data import Level
from polysem.search.store import Item, Manifest
from polysem.search.vector_checks import bounded, plain_scores


class Scorer:
    """Scores sets against one query, in float64, as the index on disk does."""

    def __init__(self, manifest: Manifest, query: NDArray[Any]) -> None:
        self.query = checked_queries(np.asarray(query)[None], manifest.dim)[0][0]
        self._compared, self._scoring = manifest.similarity, bounded(manifest.similarity)

    def scores(self, sets: NDArray[Any]) -> NDArray[np.float64]:
        """(n, K, D) -> (n,)."""
        if not len(sets):
            return np.empty(0)
        if self._scoring is not None:
            level = Level(np.ascontiguousarray(sets))
            return exact.scores(level, self.query[None], self._scoring, [np.arange(len(sets))])
        return plain_scores(sets, self.query, self._compared)


class Scored(NamedTuple):
    score: float
    added: int
    key: str
    item: Item
    vectors: NDArray[Any]


class Best:
    """The k best of items that come in pieces. Equal scores are in the order of adding."""

    def __init__(self, k: int) -> None:
        self.k, self.scored, self.unreadable = checked_k(k), 0, 0
        self._found: list[Scored] = []

    def take(self, found: Iterable[Scored]) -> None:
        before = len(self._found)
        self._found += found
        self.scored += len(self._found) - before
        self._found.sort(key=lambda one: (-one.score, one.added, one.key))
        del self._found[self.k :]

    def ranked(self, empty: NDArray[Any]) -> Ranked:
        """empty: no sets, in the shape of sets."""
        scores = np.array([one.score for one in self._found], np.float64)
        sets = np.stack([one.vectors for one in self._found]) if self._found else empty
        return Ranked([one.item for one in self._found], scores, sets, self.scored, self.unreadable)
