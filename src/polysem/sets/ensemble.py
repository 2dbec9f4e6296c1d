from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from polysem.errors import ConfigError
from polysem.features import LocalFeatures
from polysem.sets.base import SetPrediction, SetPredictor, SetSum, WeightedTokens, registry, share_tokens


@registry.register("ensemble", stored_as="chorus")
class Ensemble(SetPredictor):
    """An ensemble of set predictors: the set is the vectors of all members, each with weights of its own.

    When to use it: for models that were trained separately over the same frozen encoders (`polysem join`). Their
    errors differ, so that together they are better than each, and the encoder runs once for all. Vectors of different
    members are far apart, so a Chamfer similarity pairs those that belong together.

    `members`: a set predictor each, e.g. [{"name": "attention_pooling", "k": 1}, {"name": "slots", "k": 4}].
    """

    projects = True

    def __init__(self, dim: PositiveInt, members: list[dict[str, Any]], input_dim: PositiveInt | None = None) -> None:
        self.check_knobs({"members": members})
        built = []
        for member in members:
            takes_width = any(knob.name == "input_dim" for knob in registry.describe(member["name"]).knobs)
            built.append(registry.build(**{"dim": dim, **({"input_dim": input_dim} if takes_width else {}), **member}))
        super().__init__(dim, sum(part.k for part in built), input_dim or dim)
        self.members = nn.ModuleList(built)
        self.needs_global = any(part.needs_global for part in built)

    @classmethod
    def check_knobs(cls, knobs: Mapping[str, Any]) -> None:
        members = knobs.get("members")
        if members is not None and not (members and all("name" in member for member in members)):
            raise ConfigError(f"ensemble: members takes at least one set predictor, each with its name; got {members}.")
        for member in members or ():
            registry.check(**member)

    @classmethod
    def set_size(cls, knobs: Mapping[str, Any]) -> int:
        return sum(registry.find(member["name"]).set_size(member) for member in knobs.get("members") or ())

    @classmethod
    def adds_global(cls, knobs: Mapping[str, Any]) -> bool:
        return any(registry.find(member["name"]).adds_global(member) for member in knobs.get("members") or ())

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        predictions: list[SetPrediction] = [part(features, global_feature) for part in self.members]
        attention = [each.attention for each in predictions if each.attention is not None]
        vectors, residual = ([getattr(each, name) for each in predictions] for name in ("vectors", "residual"))
        shared = torch.cat(attention, dim=1) if len(attention) == len(predictions) else None
        return SetPrediction(torch.cat(vectors, dim=1), shared, torch.cat(residual, dim=1))

    def token_shares(self, prediction: SetPrediction) -> Tensor | None:
        # Elements of a member may compete: then attention sums to 1 over them, not over the tokens.
        return None if prediction.attention is None else share_tokens(prediction.attention)[None]

    def as_set_sum(self, features: LocalFeatures, global_feature: Tensor | None = None) -> SetSum | None:
        parts, remainders, first = [], [], 0
        for member in self.members:
            exact: SetSum | None = member.as_set_sum(features, global_feature)  # type: ignore[operator]
            if exact is None:
                return None
            size = exact.remainder.shape[1]
            for part in exact.parts:  # nothing of it is in the vectors of other members
                around = (0, 0, first, self.k - first - size)
                parts.append(WeightedTokens(F.pad(part.coefficients, around), part.values))
            remainders.append(exact.remainder)
            first += size
        return SetSum(tuple(parts), torch.cat(remainders, 1))
