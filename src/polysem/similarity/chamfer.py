"""Chamfer similarities of two sets: each element with its nearest, and DivE's smooth one with all."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat
from torch import Tensor

from polysem.similarity.base import DISTANCE_FLOPS, Reduce, Similarity, distances, registry, split_evenly

# Largest exponent for which sums of exponentials are safe in float32 without subtracting the maximum first.
_SAFE_EXPONENT = 40.0


@registry.register("chamfer")
class Chamfer(Similarity):
    """Each element with its nearest in the other set, averaged both ways: smooth-Chamfer with a hard maximum.

    s(A, B) = (mean_x max_y c(x, y) + mean_y max_x c(x, y)) / 2
    """

    search_formula = "chamfer"

    def reduce(self, c: Tensor) -> Tensor:
        return (c.amax(2).mean(1) + c.amax(1).mean(1)) / 2

    def reduce_flops(self, K: int, L: int) -> int:
        return K * (L - 1) + L * (K - 1) + (K + L) + 2  # maxima, two means, then theirs

    def shares(self, c: Tensor) -> Tensor:
        rows = split_evenly(c, -1) / c.shape[-2]
        columns = split_evenly(c, -2) / c.shape[-1]
        return c * (rows + columns) / 2


@registry.register("smooth_chamfer")
class SmoothChamfer(Similarity):
    """DivE's similarity: every element pair counts, near ones more. Trains all elements without collapsing them.

    s(A, B) = 1/(2 alpha K) sum_x LSE_y(alpha c(x, y)) + 1/(2 alpha L) sum_y LSE_x(alpha c(x, y))

    Becomes `chamfer` as alpha grows and the cosine at K = L = 1. Two collapsed, identical sets score 1 + ln(K)/alpha,
    not 1: margins live on that scale. metric "euclidean" puts minus the distance in place of the cosine.
    """

    search_formula: str | None = "smooth_chamfer"

    def __init__(
        self,
        alpha: PositiveFloat = 16.0,
        metric: Literal["cosine", "euclidean"] = "cosine",
        budget_mb: PositiveFloat = 256.0,
    ) -> None:
        super().__init__(budget_mb)
        self.alpha, self.metric = alpha, metric
        if metric != "cosine":
            self.search_formula = None

    def closeness(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y if self.metric == "cosine" else -distances(x, y)

    def reducer(self, a: Tensor, b: Tensor) -> Reduce:
        # Unit vectors make this alpha; it is measured because nothing forces a caller to normalise.
        norms = [x.detach().norm(dim=-1).max() if x.numel() else x.new_zeros(()) for x in (a, b)]
        bound = norms[0] * norms[1] if self.metric == "cosine" else norms[0] + norms[1]
        # A small alpha would ask the logarithm for digits that the exponential has lost.
        return self._reduce_bounded if self.alpha >= 1 and bool(self.alpha * bound <= _SAFE_EXPONENT) else self.reduce

    def reduce(self, c: Tensor) -> Tensor:
        c = self.alpha * c
        return (c.logsumexp(2).mean(1) + c.logsumexp(1).mean(1)) / (2 * self.alpha)

    def _reduce_bounded(self, c: Tensor) -> Tensor:
        """`reduce` with one exponential for both directions, in place: half the passes over memory."""
        e = c.mul_(self.alpha).exp_()
        return (e.sum(2).log().mean(1) + e.sum(1).log().mean(1)) / (2 * self.alpha)

    def reduce_flops(self, K: int, L: int) -> int:
        """Of `_reduce_bounded`, the way of unit vectors."""
        closeness = 0 if self.metric == "cosine" else (DISTANCE_FLOPS + 1) * K * L
        exponentials = 2 * K * L
        sums = K * (L - 1) + L * (K - 1)
        return closeness + exponentials + sums + 2 * (K + L) + 2  # logarithms and means, then the mean of both

    def shares(self, c: Tensor) -> Tensor:
        c = self.alpha * c
        rows = c.softmax(-1) * c.logsumexp(-1, keepdim=True) / c.shape[-2]
        columns = c.softmax(-2) * c.logsumexp(-2, keepdim=True) / c.shape[-1]
        return (rows + columns) / (2 * self.alpha)
