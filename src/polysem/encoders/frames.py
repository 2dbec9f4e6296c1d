from __future__ import annotations

from pydantic import PositiveInt

from polysem.encoders.base import Encoder, registry
from polysem.encoders.region import Region
from polysem.features import LocalFeatures


@registry.register("frames")
class Frames(Encoder):
    """Precomputed features of a video's frames, in order, projected to `dim`; without `dim` they pass as they are."""

    kind = "video"
    takes = "features"

    def __init__(self, input_dim: PositiveInt = 2048, dim: PositiveInt | None = None, lr_scale: float = 1.0) -> None:
        super().__init__(lr_scale=lr_scale)
        self.input_dim, self.dim = input_dim, dim or input_dim
        self.projection = Region(input_dim, dim, form="linear") if dim is not None else None

    def forward(self, features: LocalFeatures) -> LocalFeatures:
        if self.projection is not None:
            projected: LocalFeatures = self.projection(features)
            return projected
        features.check(self.input_dim)
        return features.zero_padded()
