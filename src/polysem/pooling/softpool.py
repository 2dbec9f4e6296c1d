from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt
from torch import Tensor

from polysem import masked_ops
from polysem.pooling.base import Pooling, registry


def softpool(x: Tensor, mask: Tensor) -> Tensor:
    """sum_i softmax_i(x_ij) x_ij for every dimension j. (B, N, D), (B, N) -> (B, D)."""
    return (masked_ops.softmax(x, mask[..., None], dim=1) * x).sum(1)


@registry.register("softpool")
class SoftPool(Pooling):
    """A soft maximum per dimension: values weighted by their own softmax. AdPool's embedding level alone.

    variant "official" follows the released CPU path, which is another function: one weight per token, the sum of the
    exponentials over all dimensions, and an output clamped at 0.
    """

    def __init__(self, dim: PositiveInt | None = None, variant: Literal["paper", "official"] = "paper") -> None:
        super().__init__(dim)
        self.variant = variant

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.variant == "paper":
            return softpool(x, mask)
        # softmax over tokens of logsumexp over dimensions = sum_d e^x / sum_nd e^x, without overflow
        weights = masked_ops.softmax(x.logsumexp(-1), mask, dim=1)
        return (weights[..., None] * x).sum(1).clamp(min=0)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.variant == "paper":
            return masked_ops.softmax(x, mask[..., None], dim=1)
        weights = masked_ops.softmax(x.logsumexp(-1), mask, dim=1)[..., None]
        return weights * ((weights * x).sum(1, keepdim=True) > 0)  # what is clamped has nothing to say
