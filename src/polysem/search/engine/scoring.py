"""Scores from inner products: the similarities that can be pruned exactly, and how far float32 may be off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polysem import similarity
from polysem.errors import ConfigError
from polysem.similarity import InnerProductScore, Similarity

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
Side = Literal["image", "text"]
FLOAT32_ROUNDING = 2.0**-24
# What 1 is in the 16 bits that the native batch multiplies: FIXED_ONE of kernels.c.
FIXED_ONE = 32000


@dataclass(frozen=True)
class Scoring:
    """A similarity as the engine uses it, and what it declares for exact search.

    side: of the items. A similarity that is not symmetric takes them for images or texts, and queries for the other.
    """

    part: Similarity
    formula: InnerProductScore
    side: Side = "image"

    @classmethod
    def of(cls, config: Mapping[str, Any], side: Side = "image") -> Self:
        part = similarity.build(**config)
        formula = part.inner_product_score()
        if formula is None:
            needed = "a similarity that inner products bound, such as smooth_chamfer with metric 'cosine'"
            raise ConfigError(f"Exact search needs {needed}; got {dict(part.config)}.")
        return cls(part, formula, side)

    def reduce_exactly(self, products: Float64) -> Float64:
        """(n, K, L) inner products in float64 -> (n,) scores. A pair's score does not depend on the others here."""
        if self.formula.both_ways:
            columns = np.ascontiguousarray(products.transpose(1, 2, 0))  # what is reduced comes first, pairs last
            rows = columns.swapaxes(0, 1)
            one, other = (_sum(peaks) / len(peaks) for peaks in (self._peak(rows), self._peak(columns)))
            return (one + other) / 2
        if self.formula.formula == "soft_maximum":
            chosen = np.ascontiguousarray(products.transpose((1, 2, 0) if self.side == "image" else (2, 1, 0)))
            e = np.exp(self.formula.alpha * (chosen - chosen.max(0)))
            means: Float64 = _sum(_sum(e * chosen) / _sum(e)) / chosen.shape[1]
            return means
        return np.asarray(products.max((1, 2)))

    def reduce_products(self, products: Tensor, bounds: bool) -> Tensor:
        """(Q, L, K, n) inner products of queries and items -> (Q, n) scores; of `bounds` on them, bounds on those."""
        if self.formula.formula == "soft_maximum":
            products = products.transpose(1, 2) if self.side == "image" else products
            if bounds:
                return products.amax(1).mean(1)
        return self.part.reduce(products)

    def slack(
        self,
        K: int,
        L: int,
        width: int,
        norm_error: float,
        rounding: float = FLOAT32_ROUNDING,
        fixed: int = 0,
        *,
        bounds: bool = False,
    ) -> float:
        """How far a score from a scan may be from the exact one; norms differ from 1 by `norm_error` <= 0.01.

        Sums of `width` products are off by no more than width * rounding in whatever order. Exponentials and logarithms
        are within 4e-7 natively and better in torch; 4e-6 leaves room for the few steps around them.

        fixed: on how many of the two sides vectors x were rounded to whole multiples of 1 / FIXED_ONE, to x + e:
        |<x + e, y + f> - <x, y>| <= |e| |y + f| + |x| |f|. A sketch's y + f may be that much longer than its vector.

        soft_maximum moves by up to 1 + 2 ln K times as much as the inner products do: its slope in them, p_k (1 + alpha
        (c_k - s)) with softmax weights p, is at most 1 + 2 sum_k p_k x_k in sum, x_k = alpha (max c - c_k), and that
        sum is the entropy of p less the logarithm of the sum of e^-x, at most ln K. bounds: of its plain maximum,
        which moves by no more than they do.
        """
        size = max(K, L)
        changed, max_norm = 0.51 * math.sqrt(width) / FIXED_ONE, 1.02 + 0.004 * math.sqrt(width)
        products = 1.05 * (width + 16) * rounding + fixed * changed * max_norm
        steps = 4e-6 + 4 * size * FLOAT32_ROUNDING
        if self.formula.formula == "soft_maximum":
            slope = 1.0 if bounds else 1 + 2 * math.log(K if self.side == "image" else L)
            return slope * (products + steps)
        steps *= 1 + (1 + math.log(size)) / self.formula.alpha
        return products + steps + (2.2 * norm_error if self.part.normalises else 0.0)

    def _peak(self, c: Float64) -> Float64:
        """The largest along the first axis, hard or soft."""
        top: Float64 = c.max(0)
        if math.isinf(self.formula.alpha):
            return top
        e = np.exp(np.ascontiguousarray(self.formula.alpha * (c - top)))
        return top + np.asarray(np.log(_sum(e))) / self.formula.alpha


def _sum(x: Float64) -> Float64:
    """Along the first axis, one after the other: numpy's own sum may take another order for another shape."""
    total: Float64 = x[0]
    for term in x[1:]:
        total = total + term
    return total


def find_scoring(config: Mapping[str, Any], side: Side = "image") -> Scoring | None:
    """How the exact engine scores items of a side under this similarity; None where inner products do not bound it."""
    try:
        return Scoring.of(config, side)
    except ConfigError:
        return None


def similarity_scores(sets: NDArray[Any], query: Float32, config: Mapping[str, Any], side: Side) -> Float64:
    """(n, K, D) of a side, (L, D) -> (n,) by the similarity's own code, in float64."""
    with torch.inference_mode():
        queries, items = torch.from_numpy(query.astype(np.float64))[None], torch.from_numpy(sets.astype(np.float64))
        scores: Float64 = similarity.build(**config).search_scores(queries, items, side)[0].numpy()
    return scores


def mean_vectors(sets: NDArray[Any]) -> Float32:
    """(..., K, D) -> (..., D), not normalised: a set whose vectors disagree has a short mean, and lower scores."""
    return np.ascontiguousarray(np.asarray(sets).mean(-2, dtype=np.float32))
