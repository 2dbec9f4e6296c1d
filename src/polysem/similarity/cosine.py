from __future__ import annotations

from torch import Tensor

from polysem import masked_ops
from polysem.errors import InputError
from polysem.similarity.base import InnerProductScore, Similarity, registry


@registry.register("cosine")
class Cosine(Similarity):
    """Cosine of two single vectors, whatever their length: what every model of one vector per item is compared by.

    On sets of one unit vector all other similarities but match probability equal it.
    """

    _cache_pairs = 1 << 23  # nothing is reduced: only the matrix product counts

    normalises = True
    single_vectors = True

    def inner_product_score(self) -> InnerProductScore:
        return InnerProductScore()

    def prepare(self, x: Tensor) -> Tensor:
        return masked_ops.unit(x)

    def reduce(self, c: Tensor) -> Tensor:
        if c.shape[1:3] != (1, 1):
            raise InputError(
                f"cosine compares single vectors, got sets of {c.shape[1]} and {c.shape[2]}. "
                "For sets choose smooth_chamfer, chamfer, mil or match_probability."
            )
        return c[:, 0, 0]

    def reduce_flops(self, K: int, L: int) -> int:
        return 0

    def shares(self, c: Tensor) -> Tensor:
        return c
