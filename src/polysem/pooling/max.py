from __future__ import annotations

import torch
from torch import Tensor

from polysem.pooling.base import Pooling, by_token, registry


@registry.register("max")
class Max(Pooling):
    """Largest value of each dimension: only the most salient token speaks there."""

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(~mask[..., None], float("-inf")).amax(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        first = torch.arange(x.shape[1], device=x.device) == 0
        return by_token(first.to(x.dtype)[:, None], x, mask)
