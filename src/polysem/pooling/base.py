"""Base class of poolings: local features in, one vector per item out."""

from __future__ import annotations

from abc import abstractmethod

import torch
from pydantic import PositiveInt
from torch import Tensor

from polysem import masked_ops
from polysem.features import LocalFeatures, require_features
from polysem.registry import Part, Registry

registry: Registry[Pooling] = Registry("pooling")


class Pooling(Part):
    """Maps `LocalFeatures` (B, N, D) to (B, D).

    `forward` zeroes the padding: a pooling never sees what the batch happened to hold there.
    """

    def __init__(self, dim: PositiveInt | None = None) -> None:
        """dim: width of the features. Every pooling takes it, so that swapping one for another is changing its name;
        only those with weights need it."""
        super().__init__()
        self.dim = dim

    @property
    def max_tokens(self) -> int | None:
        """The most tokens an item may have; None for any number."""
        return None

    def forward(self, features: LocalFeatures) -> Tensor:
        require_features(features, self).check(self.dim)
        return self.pool(*self.prepare(features))

    def prepare(self, features: LocalFeatures) -> tuple[Tensor, Tensor]:
        """What `pool` sees. Released codes that let padding in override it for their official variant."""
        clean = features.zero_padding()
        return clean.values, clean.mask

    @abstractmethod
    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D) with zeros at padding, (B, N) bool -> (B, D)."""

    def weights(self, features: LocalFeatures) -> Tensor | None:
        """(B, N, D): what each value is multiplied by before all are summed; 0 at padding.

        (weights * values).sum(1) is the pooled vector. None where tokens change each other first, so that there are no
        such weights.
        """
        require_features(features, self).check(self.dim)
        return self.weigh(*self.prepare(features))

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor | None:
        """`weights` of what `pool` sees."""
        return None


def scatter_to_tokens(weights: Tensor, x: Tensor, mask: Tensor, sentinel: float = float("-inf")) -> Tensor:
    """(B, N, 1 or D) weights of sorted values -> (B, N, D), the same weights where the values stand in x."""
    order = x.masked_fill(~mask[..., None], sentinel).argsort(dim=1, descending=True, stable=True)
    ranked = weights.masked_fill(~masked_ops.ranks(mask)[..., None], 0.0)
    return torch.zeros_like(x).scatter(1, order, ranked.expand_as(x)).masked_fill(~mask[..., None], 0.0)


def coefficient_shares(weights: Tensor) -> Tensor:
    """(B, N, D) weights -> (B, N): the share of the coefficients that fell on a token, mean over dimensions.

    Their size counts, whatever their sign; a dimension without any weight is left out.
    """
    size = weights.abs()
    total = size.sum(1, keepdim=True)
    shares = (size / torch.where(total > 0, total, 1.0)).sum(-1)
    return shares / (total > 0).sum(-1).clamp(min=1)
