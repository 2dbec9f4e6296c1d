"""What a pooling is: local features in, one vector per item out."""

from __future__ import annotations

from abc import abstractmethod

from pydantic import PositiveInt
from torch import Tensor

from polysem.features import LocalFeatures, require_features
from polysem.registry import Part, Registry

registry: Registry[Pooling] = Registry("pooling")


class Pooling(Part):
    """Maps `LocalFeatures` (B, N, D) to (B, D).

    `forward` is where padding becomes nothing: a pooling sees zeros there, never what the batch happened to hold.
    """

    def __init__(self, dim: PositiveInt | None = None) -> None:
        """dim: width of the features. Every pooling takes it, so that swapping one for another is changing its name;
        only those with weights need it."""
        super().__init__()
        self.dim = dim

    def forward(self, features: LocalFeatures) -> Tensor:
        require_features(features, self).check(self.dim)
        return self.pool(*self.prepared(features))

    def prepared(self, features: LocalFeatures) -> tuple[Tensor, Tensor]:
        """What `pool` sees. Released codes that let padding in override it for their official variant."""
        clean = features.zero_padded()
        return clean.values, clean.mask

    @abstractmethod
    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D) with zeros at padding, (B, N) bool -> (B, D)."""
