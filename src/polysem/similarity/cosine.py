"""The cosine of single vectors, and the best pair of two sets (MIL)."""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import Tensor

from polysem import masked_ops
from polysem.errors import InputError
from polysem.similarity.base import Similarity, registry, split_evenly


@registry.register("cosine")
class Cosine(Similarity):
    """Cosine of two single vectors, whatever their length: what every model of one vector per item is compared by.

    On sets of one unit vector all other similarities but match probability equal it.

    `logit_scale` and `logit_bias` are those of a pretrained dual encoder: cosine * scale + bias is its logit. Ranking
    is by the cosine; the sigmoid of a logit with a bias (SigLIP) is the probability that a pair matches.
    """

    _cache_pairs = 1 << 23  # nothing is reduced: only the matrix product counts

    normalises = True
    single_vectors = True
    search_formula = "max"

    def __init__(
        self,
        budget_mb: PositiveFloat = 256.0,
        logit_scale: PositiveFloat | None = None,
        logit_bias: float | None = None,
    ) -> None:
        super().__init__(budget_mb)
        self.logit_scale, self.logit_bias = logit_scale, logit_bias

    def logits(self, scores: Tensor) -> Tensor:
        """Cosines -> the logits of the dual encoder."""
        return scores * (self.logit_scale or 1.0) + (self.logit_bias or 0.0)

    def match_probabilities(self, scores: Tensor) -> Tensor | None:
        return None if self.logit_bias is None else self.logits(scores).sigmoid()

    def prepare(self, x: Tensor) -> Tensor:
        return masked_ops.normalise(x)

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


@registry.register("mil")
class MIL(Similarity):
    """Multiple-instance learning of PVSE: the best element pair alone. Elements that never win are never trained.

    s(A, B) = max_xy c(x, y)
    """

    search_formula = "max"

    def reduce(self, c: Tensor) -> Tensor:
        return c.amax((1, 2))

    def reduce_flops(self, K: int, L: int) -> int:
        return K * L - 1

    def shares(self, c: Tensor) -> Tensor:
        return c * split_evenly(c, (-2, -1))
