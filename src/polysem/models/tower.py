"""One side of a model: raw input, or the features an encoder made of it earlier, to a set of vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polysem.encoders import Encoder, Tokens
from polysem.features import Group, LocalFeatures, group_by_length
from polysem.pooling import Pooling
from polysem.registry import Part
from polysem.sets import SetPrediction, SetPredictor

Local = Literal["projected", "encoded"]
"""Which local features the set predictor reads: those after the projection, or the encoder's own (PVSE)."""

Inputs = Tensor | Tokens | LocalFeatures


@dataclass(frozen=True, eq=False)
class TokenMask:
    """Tokens that the set predictor may not see. tokens: (B, N) bool. vector: (D,), what stands in their place."""

    tokens: Tensor
    vector: Tensor

    def rows(self, rows: slice) -> TokenMask:
        return TokenMask(self.tokens[rows], self.vector)


class Tower(nn.Module):
    """encoder -> project -> sets, with a global feature from `pool` or from the encoder's own summary.

    A frozen encoder's output may be given in place of its input: features from a store skip it.
    """

    __call__: Callable[..., SetPrediction]

    def __init__(
        self,
        encoder: Encoder,
        sets: SetPredictor,
        project: Encoder | None = None,
        pool: Pooling | None = None,
        local: Local = "projected",
    ) -> None:
        super().__init__()
        self.encoder, self.project, self.pool, self.sets, self.reads = encoder, project, pool, sets, local

    @property
    def config(self) -> dict[str, Any]:
        """JSON-able; `models.build` makes the tower again."""
        return {
            "encoder": self.encoder.config,
            "project": None if self.project is None else self.project.config,
            "pool": None if self.pool is None else self.pool.config,
            "local": self.reads,
            "sets": self.sets.config,
        }

    def forward(self, inputs: Inputs, keep: Tensor | None = None, masked: TokenMask | None = None) -> SetPrediction:
        return self.embed(*self.encode(inputs, keep, masked))

    def encode(
        self, inputs: Inputs, keep: Tensor | None = None, masked: TokenMask | None = None
    ) -> tuple[LocalFeatures, LocalFeatures]:
        """The local features before and after the projection. keep: (B, N), False for tokens that size augmentation
        drops, as early as there are tokens to drop: batch norm must not see them. masked: tokens whose projection is
        replaced, for a set predictor that learns to predict them."""
        # Features given to an encoder of something else are what it made of its input earlier.
        encoded = inputs if isinstance(inputs, LocalFeatures) else self.encoder(inputs)
        if keep is not None:
            encoded = LocalFeatures(encoded.values, encoded.mask & keep, encoded.summary)
        if self.encoder.takes == "features":
            encoded = self.encoder(encoded)
        projected = encoded if self.project is None else self.project(encoded)
        if masked is not None:
            values = projected.values.where(~masked.tokens[..., None], masked.vector.to(projected.values))
            projected = LocalFeatures(values, projected.mask, projected.summary)
        return encoded, projected

    def embed(self, encoded: LocalFeatures, projected: LocalFeatures) -> SetPrediction:
        """The set of vectors. Items do not meet here: any part of a batch can be embedded by itself.

        So where padding would cost anything, a batch of very different lengths is embedded in groups of like ones.
        """
        groups = group_by_length(projected.mask) if self.sets.works_on_tokens and not self.reads_padding else []
        if len(groups) < 2:
            return self._embed(encoded, projected)
        cut = split_groups(projected, groups)
        read = cut if self.reads == "projected" else split_groups(encoded, groups)
        parts = [self._embed(*both) for both in zip(read, cut, strict=True)]
        return join_groups(parts, [rows for rows, _ in groups], projected.mask.shape[1])

    @property
    def reads_padding(self) -> bool:
        """Whether a part takes padding in, as released code does: then it must be as long as it was."""
        return any(part.reads_padding for part in self.modules() if isinstance(part, Part))

    def _embed(self, encoded: LocalFeatures, projected: LocalFeatures) -> SetPrediction:
        summary = None
        if self.sets.needs_global:
            summary = projected.summary if self.pool is None else self.pool(projected)
        prediction: SetPrediction = self.sets(projected if self.reads == "projected" else encoded, summary)
        return prediction

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Optimiser groups: the encoder's body at its own pace, all else at `lr`."""
        groups = [
            {**group, "name": f"encoder.{group['name']}"} for group in self.encoder.parameter_groups(lr, weight_decay)
        ]
        base = getattr(self.sets, "base", None)  # of a set predictor that is built around another
        parts = ("project", self.project), ("pool", self.pool), ("sets.base", base), ("sets", self.sets)
        for name, part in parts:
            params = [] if part is None else list(part.parameters())
            if name == "sets" and base is not None:
                inner = {id(parameter) for parameter in base.parameters()}
                params = [parameter for parameter in params if id(parameter) not in inner]
            if params:
                groups.append({"name": name, "params": params, "lr": lr, "weight_decay": weight_decay})
        return groups


def split_groups(features: LocalFeatures, groups: list[Group]) -> list[LocalFeatures]:
    """The groups of a batch, each without the padding that none of its rows needs."""
    items, width, dim = features.values.shape
    # One gather for all: its gradient then fills one tensor of the batch's size, not one for each group.
    places = [(rows[:, None] * width + torch.arange(length, device=rows.device)).flatten() for rows, length in groups]
    tokens = features.values.reshape(items * width, dim).index_select(0, torch.cat(places))
    parts = tokens.split([len(place) for place in places])
    return [
        LocalFeatures(
            values.view(len(rows), length, dim),
            features.mask[rows, :length],
            None if features.summary is None else features.summary.index_select(0, rows),
        )
        for values, (rows, length) in zip(parts, groups, strict=True)
    ]


def join_groups(parts: list[SetPrediction], rows: list[Tensor], length: int) -> SetPrediction:
    """The predictions of the groups as if they had been made together."""
    back = torch.cat(rows).argsort()

    def join(name: str, items_axis: int = 0, tokens_axis: int | None = None) -> Any:
        values = [getattr(part, name) for part in parts]
        if values[0] is None:
            return None
        if tokens_axis is not None:
            after = (0, 0) * (-tokens_axis - 1)
            values = [F.pad(value, (*after, 0, length - value.shape[tokens_axis])) for value in values]
        return torch.cat(values, items_axis).index_select(items_axis, back)

    return SetPrediction(
        join("vectors"),
        join("attention", tokens_axis=-1),
        join("residual"),
        join("attention_steps", items_axis=1, tokens_axis=-1),
        join("logits"),
        join("states", tokens_axis=-2),
        join("global_vector"),
    )
