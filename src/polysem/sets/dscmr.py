from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.features import LocalFeatures
from polysem.pooling import build as build_pooling
from polysem.pooling import check as check_pooling
from polysem.sets.base import SetPrediction, SetPredictor, registry


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
        self.pooling = build_pooling(pooling, **{"dim": input_dim, **(knobs or {})})
        self.space = nn.Linear(input_dim, dim)
        self.predict_classes = None if labels is None else nn.Linear(dim, len(labels))

    @classmethod
    def check_knobs(cls, knobs: Mapping[str, Any]) -> None:
        check_pooling(cls.knob(knobs, "pooling"), **(knobs.get("knobs") or {}))

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        point = self.space(self.pooling(features).relu())
        logits = None if self.predict_classes is None else self.predict_classes(point)
        return SetPrediction(masked_ops.unit(point[:, None]), None, point[:, None], logits=logits)

    @torch.no_grad()
    def initialise_frequencies(self, frequencies: Tensor) -> None:
        if self.predict_classes is not None:
            self.predict_classes.bias.copy_(frequencies)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The regression's outcome, cut off at 0 and 1."""
        return torch.clamp(logits, 0.0, 1.0)
