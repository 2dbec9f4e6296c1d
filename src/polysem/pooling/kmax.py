from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor

from polysem import masked_ops
from polysem.pooling.base import Pooling, by_token, registry


@registry.register("kmax")
class KMax(Pooling):
    """Mean of the k largest values of each dimension (of all of them where an item is shorter than k).

    Between `max` (k = 1) and `mean` (k = n). "Manual" in the VSE+2AD tables is k = 5 for images with `mean` for text.
    """

    def __init__(self, dim: PositiveInt | None = None, k: PositiveInt = 5) -> None:
        super().__init__(dim)
        self.k = k

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        k = min(self.k, x.shape[1])
        filled = x.masked_fill(~mask[..., None], float("-inf")).transpose(1, 2)
        largest = filled.topk(k, dim=-1).values.transpose(1, 2)
        taken = masked_ops.ranks(mask)[:, :k]
        return masked_ops.mean(largest.masked_fill(~taken[..., None], 0.0), taken)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        taken = masked_ops.ranks(mask) & (torch.arange(x.shape[1], device=x.device) < self.k)
        return by_token((taken / taken.sum(1, keepdim=True)).to(x.dtype)[..., None], x, mask)
