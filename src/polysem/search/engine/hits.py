from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Hits:
    """What a search found, best first; equal scores in ascending position. Fewer than k where there are fewer items."""

    positions: NDArray[np.int64]
    scores: NDArray[np.float64]
    scored: int
    """How many items were compared in full: all of them where nothing could be pruned."""


def best(positions: NDArray[np.int64], scores: NDArray[np.float64], k: int, scored: int) -> Hits:
    """The k best of those whose exact scores are known."""
    order = np.lexsort((positions, -scores))[:k]
    return Hits(positions[order], scores[order], scored)
