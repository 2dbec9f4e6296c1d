"""Single vectors as sets of one: any pooling, or the global feature itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import PositiveInt
from torch import Tensor

from polysem import masked_ops
from polysem.features import LocalFeatures
from polysem.pooling import build as build_pooling
from polysem.pooling import check as check_pooling
from polysem.pooling.base import coefficient_shares
from polysem.sets.base import SetPrediction, SetPredictor, TokenSum, registry


@registry.register("single")
class Single(SetPredictor):
    """Any pooling as a set of one: the single-vector models are this. The global feature is not used.

    `pooling` names it and `knobs` are its own, e.g. build("single", dim=256, pooling="gpo").
    """

    needs_global = False

    def __init__(self, dim: PositiveInt, pooling: str = "gpo", knobs: dict[str, Any] | None = None) -> None:
        super().__init__(dim, 1, dim)
        self.pooling = build_pooling(pooling, **{"dim": dim, **(knobs or {})})

    @classmethod
    def check_knobs(cls, knobs: Mapping[str, Any]) -> None:
        check_pooling(cls.knob(knobs, "pooling"), **(knobs.get("knobs") or {}))

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        pooled = self.pooling(features)[:, None]
        return SetPrediction(masked_ops.unit(pooled), None, pooled)

    def as_sum(self, features: LocalFeatures) -> TokenSum | None:
        weights = self.pooling.weights(features)
        if weights is None:
            return None
        return TokenSum(weights * self.pooling.prepare(features)[0], coefficient_shares(weights))


@registry.register("global_feature", stored_as="summary")
class GlobalFeature(SetPredictor):
    """The global feature itself as a set of one: the final state of a GRU is VSE++'s sentence vector."""

    def __init__(self, dim: PositiveInt, input_dim: PositiveInt | None = None) -> None:
        super().__init__(dim, 1, input_dim)

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        vectors = global_feature[:, None]  # type: ignore[index]
        return SetPrediction(masked_ops.unit(vectors), None, vectors)
