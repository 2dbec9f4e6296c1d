from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor

from polysem import masked_ops
from polysem.features import LocalFeatures
from polysem.sets.base import SetPrediction, SetPredictor, registry


@registry.register("global_feature", stored_as="summary")
class GlobalFeature(SetPredictor):
    """The global feature itself as a set of one: the final state of a GRU is VSE++'s sentence vector."""

    def __init__(self, dim: PositiveInt, input_dim: PositiveInt | None = None) -> None:
        super().__init__(dim, 1, input_dim)

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        vectors = global_feature[:, None]  # type: ignore[index]
        return SetPrediction(masked_ops.unit(vectors), None, vectors)
