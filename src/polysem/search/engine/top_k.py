from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Hits:
    """What a search found, best first; equal scores in ascending position. Fewer than k where there are fewer items."""

    positions: NDArray[np.int64]
    scores: NDArray[np.float64]
    scored: int
    """How many items were compared in full: all of them where nothing could be pruned."""


def best_of_each(
    rows: Sequence[NDArray[np.int64]], scores: NDArray[np.float64], k: int, scored: Sequence[int]
) -> list[Hits]:
    """`best` for many queries: the rows of each, and the scores of all of them one after the other."""
    counts = [len(those) for those in rows]
    positions = np.concatenate(rows)
    order = np.lexsort((positions, -scores, np.repeat(np.arange(len(rows)), counts)))
    positions, scores = positions[order], scores[order]
    stops = accumulate(counts)
    parts = (slice(stop - count, stop - count + min(k, count)) for stop, count in zip(stops, counts, strict=True))
    return [Hits(positions[part], scores[part], n) for part, n in zip(parts, scored, strict=True)]


def best(positions: NDArray[np.int64], scores: NDArray[np.float64], k: int, scored: int) -> Hits:
    """The k best of those whose exact scores are known."""
    order = np.lexsort((positions, -scores))[:k]
    return Hits(positions[order], scores[order], scored)
