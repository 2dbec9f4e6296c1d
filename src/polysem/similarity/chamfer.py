from __future__ import annotations

from torch import Tensor

from polysem.similarity.base import InnerProductScore, Similarity, registry, split_evenly


@registry.register("chamfer")
class Chamfer(Similarity):
    """Each element with its nearest in the other set, averaged both ways: smooth-Chamfer with a hard maximum.

    s(A, B) = (mean_x max_y c(x, y) + mean_y max_x c(x, y)) / 2
    """

    def inner_product_score(self) -> InnerProductScore:
        return InnerProductScore(both_ways=True)

    def reduce(self, c: Tensor) -> Tensor:
        return (c.amax(2).mean(1) + c.amax(1).mean(1)) / 2

    def reduce_flops(self, K: int, L: int) -> int:
        maxima = K * (L - 1) + L * (K - 1)
        return maxima + (K + L) + 2  # two means, then theirs

    def shares(self, c: Tensor) -> Tensor:
        rows = split_evenly(c, -1) / c.shape[-2]
        columns = split_evenly(c, -2) / c.shape[-1]
        return c * (rows + columns) / 2
