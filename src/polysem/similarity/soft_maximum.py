"""The soft maximum over an image's elements: one-sided, for images as sets and texts as one vector."""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import Tensor

from polysem.similarity.base import Similarity, registry


@registry.register("soft_maximum")
class SoftMaximum(Similarity):
    """Each text element with the image elements near it, averaged over the text's: sets of 8 x 1, say.

    s(A, B) = mean_y sum_x softmax_x(alpha c(x, y)) c(x, y)

    A, the first side, is the image's set: the text chooses among its elements. Between the mean of the cosines and
    their maximum, which it becomes as alpha grows; the cosine at K = L = 1. When to use it: where an image holds
    several things and a text names one of them. Not symmetric: a search of images treats any query as a text, a search
    of texts any query as an image.
    """

    symmetric = False
    search_formula = "soft_maximum"

    def __init__(self, alpha: PositiveFloat = 16.0, budget_mb: PositiveFloat = 256.0) -> None:
        super().__init__(budget_mb)
        self.alpha = alpha

    def reduce(self, c: Tensor) -> Tensor:
        return ((self.alpha * c).softmax(1) * c).sum(1).mean(1)

    def reduce_flops(self, K: int, L: int) -> int:
        return L * (5 * K - 1) + L  # of each y: scale, exponential, product, two sums and a quotient; their mean

    def shares(self, c: Tensor) -> Tensor:
        return self.pair_weights(c) * c

    def pair_weights(self, c: Tensor) -> Tensor:
        return (self.alpha * c).softmax(-2) / c.shape[-1]
