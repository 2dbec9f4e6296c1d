from __future__ import annotations

from torch import Tensor

from polysem.similarity.base import InnerProductScore, Similarity, registry, split_evenly


@registry.register("mil")
class MIL(Similarity):
    """Multiple-instance learning of PVSE: the best element pair alone. Elements that never win are never trained.

    s(A, B) = max_xy c(x, y)
    """

    def inner_product_score(self) -> InnerProductScore:
        return InnerProductScore()

    def reduce(self, c: Tensor) -> Tensor:
        return c.amax((1, 2))

    def reduce_flops(self, K: int, L: int) -> int:
        return K * L - 1

    def shares(self, c: Tensor) -> Tensor:
        return c * split_evenly(c, (-2, -1))
