from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.features import LocalFeatures
from polysem.pooling.base import Pooling, registry, scatter_to_tokens


@registry.register("fspool")
class FSPool(Pooling):
    """Featurewise sort pooling: each dimension weights its sorted values by its own piecewise-linear curve.

    v_j = sum_k f_j(k / (n - 1)) u_kj, where u is sorted in descending order and f_j interpolates `pieces` + 1 learned
    knots. Nothing normalises the weights. The per-dimension ancestor of GPO.

    variant "official" keeps the released length-1 bug: in a padded batch such an item takes in the first padded slot
    with its contents, as a second value.
    """

    official_keys = {"weight": "knots"}

    def __init__(
        self, dim: PositiveInt, pieces: PositiveInt = 20, variant: Literal["paper", "official"] = "paper"
    ) -> None:
        super().__init__(dim)
        self.pieces, self.variant = pieces, variant
        self.knots = nn.Parameter(torch.randn(dim, pieces + 1))

    def prepare(self, features: LocalFeatures) -> tuple[Tensor, Tensor]:
        if self.variant == "paper":
            return super().prepare(features)
        second = torch.arange(features.mask.shape[1], device=features.mask.device) == 1
        return features.values, features.mask | (features.lengths == 1)[:, None] & second

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self._curves(mask) * masked_ops.sort_descending(x, mask)).sum(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        return scatter_to_tokens(self._curves(mask), x, mask)

    def _curves(self, mask: Tensor) -> Tensor:
        if masked_ops.is_tracing():
            return self.curve(mask.sum(1), mask.shape[1])
        lengths, which = mask.sum(1).unique(return_inverse=True)
        return self.curve(lengths, mask.shape[1])[which]

    def curve(self, lengths: Tensor, padded: int) -> Tensor:
        """(S,) -> (S, padded, D): f_j at the relative rank of every sorted slot (anything goes past the length)."""
        rank = torch.arange(padded, device=lengths.device)
        position = rank / (lengths[:, None] - 1).clamp(min=1)
        position = position.clamp(max=1) * self.pieces
        left = position.floor().long()
        share = (position - left)[..., None].to(self.knots.dtype)
        knots = self.knots.t()
        return (1 - share) * knots[left] + share * knots[(left + 1).clamp(max=self.pieces)]
