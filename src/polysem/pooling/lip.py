from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.pooling.base import Pooling, registry


def lip(x: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """sum_i x_i e^l_i / sum_i e^l_i per dimension. (B, N, D), (B, N, D), (B, N) -> (B, D)."""
    return (masked_ops.softmax(logits, mask[..., None], dim=1) * x).sum(1)


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
        return lip(x, self.logits(x, mask), mask)

    def logits(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D): the gated rating of each value."""
        return gate(self.norm_scale * instance_norm(self.logit(x), mask) + self.norm_shift, self.scale)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        return masked_ops.softmax(self.logits(x, mask), mask[..., None], dim=1)

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = super().translate_official(state)
        weight = own.get("logit.weight")
        if weight is not None and weight.ndim > 2 and weight[0, 0].numel() == 1:
            own["logit.weight"] = weight.flatten(1)  # a 1x1 convolution is a linear map
        return own


def instance_norm(x: Tensor, mask: Tensor, eps: float = 1e-5) -> Tensor:
    """Zero mean and unit variance over the real tokens of each item, per dimension."""
    real = mask[..., None]
    x = x.masked_fill(~real, 0.0)
    centred = (x - masked_ops.mean(x, mask)[:, None]).masked_fill(~real, 0.0)
    variance = masked_ops.mean(centred.square(), mask)[:, None]
    return centred * (variance + eps).rsqrt()
