"""Poolings that weight values by a softmax over the tokens: SoftPool, AdaPool and LIP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.pooling.base import Pooling, registry


def pool_by_softmax(x: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """sum_i x_i e^l_i / sum_i e^l_i per dimension. (B, N, D), (B, N, D), (B, N) -> (B, D)."""
    return (masked_ops.softmax(logits, mask[..., None], dim=1) * x).sum(1)


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
        return (self.weigh(x, mask) * x).sum(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.variant == "paper":
            return masked_ops.softmax(x, mask[..., None], dim=1)
        weights = masked_ops.softmax(x.logsumexp(-1), mask, dim=1)[..., None]
        return weights * ((weights * x).sum(1, keepdim=True) > 0)  # what is clamped has no weight


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
        typical = pool_by_softmax(x, dice_similarity(x, centre), mask)
        if self.training:
            # In place: a clamp in the graph would hold a beta that has left [0, 1] there for good, without gradient.
            # Of the data: a batch may be pooled in groups, and the graph of the first must stay valid in the second.
            self.beta.data.clamp_(0, 1)
        beta = self.beta.clamp(0, 1)
        return beta * typical + (1 - beta) * pool_by_softmax(x, x, mask)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        centre, real, beta = masked_ops.mean(x, mask)[:, None], mask[..., None], self.beta.clamp(0, 1)
        typical = masked_ops.softmax(dice_similarity(x, centre), real, dim=1)
        return beta * typical + (1 - beta) * masked_ops.softmax(x, real, dim=1)


def gate(raw: Tensor, scale: float) -> Tensor:
    """LIP's soft gate: a logit between 0 and `scale`."""
    return scale * torch.sigmoid(raw)


@registry.register("lip")
class LIP(Pooling):
    """Local importance pooling: a small network rates each value, and the ratings weight the average.

    l = scale * sigmoid(InstanceNorm(W x)), v = sum_i x_i e^l_i / sum_i e^l_i. The released logit network is
    convolutional; over a set of tokens it is the same with 1x1 kernels. W starts at 0, so LIP starts as the mean.
    """

    official_keys = {
        "logit.conv.weight": "logit.weight",
        "logit.bn.weight": "norm_scale",
        "logit.bn.bias": "norm_shift",
    }

    def __init__(self, dim: PositiveInt, scale: PositiveFloat = 12.0) -> None:
        super().__init__(dim)
        self.scale = scale
        self.logit = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.logit.weight)
        self.norm_scale = nn.Parameter(torch.ones(dim))
        self.norm_shift = nn.Parameter(torch.zeros(dim))

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self.weigh(x, mask) * x).sum(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        real = mask[..., None]
        raw = self.logit(x).masked_fill(~real, 0.0)
        # Instance norm: zero mean and unit variance over the real tokens of each item, per dimension.
        centred = (raw - masked_ops.mean(raw, mask)[:, None]).masked_fill(~real, 0.0)
        normed = centred * (masked_ops.mean(centred.square(), mask)[:, None] + 1e-5).rsqrt()
        return masked_ops.softmax(gate(self.norm_scale * normed + self.norm_shift, self.scale), real, dim=1)

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = super().translate_official(state)
        weight = own.get("logit.weight")
        if weight is not None and weight.ndim > 2 and weight[0, 0].numel() == 1:
            own["logit.weight"] = weight.flatten(1)  # a 1x1 convolution is a linear map
        return own
