"""Poolings without weights of their own: the mean, the maximum and the mean of the k largest."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor

from polysem import masked_ops
from polysem.pooling.base import Pooling, registry, scatter_to_tokens


@registry.register("mean")
class Mean(Pooling):
    """Mean of the tokens, v = sum_i x_i / n. The cheapest; the usual choice for text."""

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return masked_ops.mean(x, mask)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        return (mask / mask.sum(1, keepdim=True)).to(x.dtype)[..., None].expand_as(x)


@registry.register("max")
class Max(Pooling):
    """Largest value of each dimension, v_j = max_i x_ij: only the most salient token counts there."""

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(~mask[..., None], float("-inf")).amax(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        first = torch.arange(x.shape[1], device=x.device) == 0
        return scatter_to_tokens(first.to(x.dtype)[:, None], x, mask)


@registry.register("kmax")
class KMax(Pooling):
    """Mean of the k largest values of each dimension (of all of them where an item is shorter than k).

    Between `max` (k = 1) and `mean` (k = n). "Manual" in the VSE+2AD tables is k = 5 for images with `mean` for text.
    """

    def __init__(self, dim: PositiveInt | None = None, k: PositiveInt = 5) -> None:
        super().__init__(dim)
        self.k = k

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        if masked_ops.is_tracing():  # from a full sort: how many there are to take is not known
            taken = self._taken(mask)
            return masked_ops.mean(masked_ops.sort_descending(x, mask).masked_fill(~taken[..., None], 0.0), taken)
        k = min(self.k, x.shape[1])
        filled = x.masked_fill(~mask[..., None], float("-inf")).transpose(1, 2)
        largest = filled.topk(k, dim=-1).values.transpose(1, 2)
        taken = masked_ops.ranks(mask)[:, :k]
        return masked_ops.mean(largest.masked_fill(~taken[..., None], 0.0), taken)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        taken = self._taken(mask)
        return scatter_to_tokens((taken / taken.sum(1, keepdim=True)).to(x.dtype)[..., None], x, mask)

    def _taken(self, mask: Tensor) -> Tensor:
        return masked_ops.ranks(mask) & (torch.arange(mask.shape[1], device=mask.device) < self.k)
