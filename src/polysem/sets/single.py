"""Single vectors as sets of one: any pooling, the global feature itself, or DSCMR's common space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.features import LocalFeatures
from polysem.pooling import registry as poolings
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
        self.pooling = poolings.build(pooling, **{"dim": dim, **(knobs or {})})

    @classmethod
    def check_knobs(cls, knobs: Mapping[str, Any]) -> None:
        poolings.check(cls.knob(knobs, "pooling"), **(knobs.get("knobs") or {}))

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        pooled = self.pooling(features)[:, None]
        return SetPrediction(masked_ops.normalise(pooled), None, pooled)

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
        return SetPrediction(masked_ops.normalise(vectors), None, vectors)


@registry.register("dscmr", stored_as="common")
class CommonSpace(SetPredictor):
    """DSCMR's common space: a linear map of the pooled item that both towers share, and a linear label classifier.

    u = W ReLU(pool(x)); the vector is unit(u); P u predicts the labels by regression on 0 and 1.
    When to use it: as a baseline for items with labels, shared by both towers: text["sets"] = "shared". `pooling` names
    the pooling and `knobs` are its own.
    """

    needs_global = False
    classifies = True

    def __init__(
        self,
        dim: PositiveInt,
        input_dim: PositiveInt,
        labels: list[str] | None = None,
        pooling: str = "mean",
        knobs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(dim, 1, input_dim)
        self.labels = None if labels is None else tuple(labels)
        self.pooling = poolings.build(pooling, **{"dim": input_dim, **(knobs or {})})
        self.space = nn.Linear(input_dim, dim)
        self.predict_classes = None if labels is None else nn.Linear(dim, len(labels))

    @classmethod
    def check_knobs(cls, knobs: Mapping[str, Any]) -> None:
        poolings.check(cls.knob(knobs, "pooling"), **(knobs.get("knobs") or {}))

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        point = self.space(self.pooling(features).relu())
        logits = None if self.predict_classes is None else self.predict_classes(point)
        return SetPrediction(masked_ops.normalise(point[:, None]), None, point[:, None], logits=logits)

    @torch.no_grad()
    def initialise_frequencies(self, frequencies: Tensor) -> None:
        if self.predict_classes is not None:
            self.predict_classes.bias.copy_(frequencies)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The regression's outcome, cut off at 0 and 1."""
        return torch.clamp(logits, 0.0, 1.0)
