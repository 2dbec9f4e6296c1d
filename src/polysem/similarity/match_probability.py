from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from polysem.errors import ConfigError
from polysem.similarity.base import DISTANCE_FLOPS, Similarity, registry, squared_distances


@registry.register("match_probability")
class MatchProbability(Similarity):
    """Mean probability that two elements match. Every pair counts alike, which pulls the elements together.

    form "dive": mean sigmoid(scale * c + shift) of the cosine c, with scale 1 and shift 0 if not given.
    form "pcme": mean sigmoid(2 (-scale * d + shift)) of the distance d = sqrt(|x - y|^2 + 1e-6), scale = shift = 15.

    `learnable` trains scale and shift, as PCME does. (DivE's released code means to and does not: its two numbers are
    never registered.)
    """

    scale: Tensor
    shift: Tensor

    official_keys = {"negative_scale": "scale", "shift": "shift"}

    def __init__(
        self,
        form: Literal["dive", "pcme"] = "dive",
        scale: float | None = None,
        shift: float | None = None,
        learnable: bool = False,
        budget_mb: PositiveFloat = 256.0,
    ) -> None:
        super().__init__(budget_mb)
        self.form = form
        defaults = (1.0, 0.0) if form == "dive" else (15.0, 15.0)
        for name, value, default in zip(("scale", "shift"), (scale, shift), defaults, strict=True):
            start = torch.tensor([default if value is None else value])
            if learnable:
                self.register_parameter(name, nn.Parameter(start))
            else:
                self.register_buffer(name, start)

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.form == "dive":
            raise ConfigError("DivE's released code stores no scale and shift; form='pcme' loads PCME's.")
        return super().translate_official(state)

    def closeness(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y if self.form == "dive" else -(squared_distances(x, y) + 1e-6).sqrt()

    def probabilities(self, c: Tensor) -> Tensor:
        logits = self.scale * c + self.shift
        return torch.sigmoid(logits if self.form == "dive" else 2 * logits)

    def reduce(self, c: Tensor) -> Tensor:
        return self.probabilities(c).mean((1, 2))

    def reduce_flops(self, K: int, L: int) -> int:
        # Scale, shift, sigmoid and mean; PCME's also doubles the logit and negates a distance kept off 0.
        each = 4 if self.form == "dive" else 4 + 1 + DISTANCE_FLOPS + 2
        return each * K * L

    def shares(self, c: Tensor) -> Tensor:
        return self.probabilities(c) / (c.shape[-2] * c.shape[-1])
