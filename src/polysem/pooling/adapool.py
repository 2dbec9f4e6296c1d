from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.pooling.base import Pooling, registry
from polysem.pooling.simple import softpool


def dice_similarity(a: Tensor, b: Tensor) -> Tensor:
    """2|ab| / (a^2 + b^2), elementwise; 0 where both are 0."""
    denominator = a.square() + b.square()
    return 2 * (a * b).abs() / torch.where(denominator > 0, denominator, 1.0)


@registry.register("adapool")
class AdaPool(Pooling):
    """Exponential adaptive pooling: a learned mix of a soft maximum and of the values most like the mean.

    v = beta * sum_i softmax_i(dsc(x_i, mean)) x_i + (1 - beta) * softpool(x), with one scalar beta for the whole set.
    The released code clamps beta to [0, 1] when it starts but not while it trains; here it stays there.
    """

    official_keys = {"beta": "beta"}

    def __init__(self, dim: PositiveInt | None = None) -> None:
        super().__init__(dim)
        self.beta = nn.Parameter(torch.randn(1).clamp(0, 1))

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        centre = masked_ops.mean(x, mask)[:, None]
        typical = (masked_ops.softmax(dice_similarity(x, centre), mask[..., None], dim=1) * x).sum(1)
        if self.training:
            # In place: a clamp in the graph would hold a beta that has left [0, 1] there for good, without gradient.
            # Of the data: a batch may be pooled in groups, and the graph of the first must stay valid in the second.
            self.beta.data.clamp_(0, 1)
        beta = self.beta.clamp(0, 1)
        return beta * typical + (1 - beta) * softpool(x, mask)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        centre, real, beta = masked_ops.mean(x, mask)[:, None], mask[..., None], self.beta.clamp(0, 1)
        typical = masked_ops.softmax(dice_similarity(x, centre), real, dim=1)
        return beta * typical + (1 - beta) * masked_ops.softmax(x, real, dim=1)
