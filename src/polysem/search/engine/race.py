"""One query's search under way: who has been scored, and the score that k items are sure to reach."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import scan


class Race:
    """Scores come in float32, each within `slack` of the exact one.

    `bar`: at least k items score this much, so whoever cannot reach it is out, whatever the ties.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.bar = -np.inf
        self._best = np.empty(0, np.float32)
        self._scored: list[tuple[int, NDArray[np.int64], NDArray[np.float32], float]] = []

    def add(self, segment: int, rows: NDArray[np.int64], scores: NDArray[np.float32], slack: float) -> None:
        """rows: positions within the segment."""
        self._scored.append((segment, rows, scores, slack))
        lowest = scores[scan.largest(scores, self.k)] - np.float32(slack)
        best = np.concatenate([self._best, lowest])
        self._best = best[scan.largest(best, self.k)]
        if len(self._best) == self.k:
            self.bar = float(self._best.min())

    def reaches(self, bounds: NDArray[np.float32], slack: float) -> NDArray[np.bool_]:
        """Who may still be among the k best."""
        reaching: NDArray[np.bool_] = bounds >= self.bar - slack
        return reaching

    def finalists(self) -> dict[int, NDArray[np.int64]]:
        """The rows of each segment that the exact score has to decide between."""
        found: dict[int, list[NDArray[np.int64]]] = {}
        for segment, rows, scores, slack in self._scored:
            found.setdefault(segment, []).append(rows[self.reaches(scores, slack)])
        return {segment: np.concatenate(rows) for segment, rows in found.items()}

    @property
    def scored(self) -> int:
        return sum(len(rows) for _, rows, _, _ in self._scored)

    def scored_of(self, segment: int) -> int:
        return sum(len(rows) for place, rows, _, _ in self._scored if place == segment)
