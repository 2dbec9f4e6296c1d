"""Answers that are more or less right: NDCG, precision and average precision of rankings with gains. In per cent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polysem.evaluation.relevance import Ints
from polysem.evaluation.score_matrix import Floats

Values = npt.NDArray[np.float64]
Gains = npt.NDArray[np.uint32]


def discounts(k: int) -> Values:
    """(k,) of the places from 0: log2(place + 2)."""
    return np.asarray(np.log2(np.arange(k) + 2.0), dtype=np.float64)


def graded(scores: Floats, gains: Gains, discount: Values) -> dict[str, Values]:
    """Figures of each query. scores, gains: (q, g). discount: (k,), or (q, k) where each query has its own; k <= g.

    ndcg: the sum of gain / discount over the first k places, as a share of the largest possible. precision: the share
    of useful answers, those with a gain, among the first k. map: the mean, over all useful answers, of the precision at
    their places. All are 0 where nothing is useful; map nowhere else.
    """
    k, size = discount.shape[-1], gains.shape[1]
    found = in_order(scores, gains)
    highest = np.sort(np.partition(gains, size - k, axis=1)[:, size - k :], axis=1)[:, ::-1]
    ideal = (highest / discount).sum(1)
    useful = found > 0
    so_far = useful.cumsum(1)
    precisions = so_far / np.arange(1, size + 1)
    return {
        "ndcg": 100.0 * (found[:, :k] / discount).sum(1) / np.where(ideal > 0, ideal, 1.0),
        "precision": 100.0 * useful[:, :k].mean(1),
        "map": 100.0 * (precisions * useful).sum(1) / np.maximum(1, so_far[:, -1]),
    }


def in_order(scores: Floats, gains: Gains) -> Gains:
    """(q, g) gains from the highest score to the lowest. Of equal scores the lower gain stands first: ties never
    flatter."""
    if scores.dtype != np.float32:
        order: Ints = np.lexsort((gains, -scores), axis=1)
        return np.take_along_axis(gains, order, 1)
    # Score and gain in one whole number: one fast sort for both, six times as fast.
    bits = (scores + np.float32(0)).view(np.int32)  # no minus zero
    falling = np.where(bits < 0, bits.view(np.uint32), np.uint32(0x7FFFFFFF) - bits.view(np.uint32))
    keys = falling.astype(np.uint64) << np.uint64(32) | gains
    keys.sort(axis=1)
    return keys.astype(np.uint32)
