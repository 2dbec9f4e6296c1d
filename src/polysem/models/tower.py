"""One side of a model: raw input, or the features an encoder made of it earlier, to a set of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polysem.encoders import Encoder, Tokens
from polysem.errors import ConfigError
from polysem.features import LocalFeatures
from polysem.masked_ops import is_tracing
from polysem.pooling import Pooling
from polysem.registry import Part
from polysem.sets import SetPrediction, SetPredictor

Local = Literal["projected", "encoded"]
"""Which local features the set predictor reads: those after the projection, or the encoder's own (PVSE)."""

Inputs = Tensor | Tokens | LocalFeatures


@dataclass(frozen=True, eq=False)
class Hidden:
    """Tokens that the set predictor may not see. tokens: (B, N) bool. vector: (D,), what stands in their place."""

    tokens: Tensor
    vector: Tensor

    def rows(self, rows: slice) -> Hidden:
        return Hidden(self.tokens[rows], self.vector)


class Tower(nn.Module):
    """encoder -> project -> sets, with a global feature from `pool` or from the encoder's own summary.

    A frozen encoder's output may be given in place of its input: features from a store skip it.
    """

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

    def forward(self, inputs: Inputs, keep: Tensor | None = None, hidden: Hidden | None = None) -> SetPrediction:
        return self.embed(*self.encode(inputs, keep, hidden))

    def encode(
        self, inputs: Inputs, keep: Tensor | None = None, hidden: Hidden | None = None
    ) -> tuple[LocalFeatures, LocalFeatures]:
        """The local features before and after the projection. keep: (B, N), False for tokens that size augmentation
        drops, as early as there are tokens to drop: batch norm must not see them. hidden: tokens whose projection is
        replaced, for a set predictor that learns to guess them."""
        if isinstance(inputs, LocalFeatures):
            inputs = _without(inputs, keep)
            encoded = inputs if self.is_encoded(inputs) else self.encoder(inputs)
        else:
            encoded = _without(self.encoder(inputs), keep)
        projected = encoded if self.project is None else self.project(encoded)
        if hidden is not None:
            values = projected.values.where(~hidden.tokens[..., None], hidden.vector.to(projected.values))
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
        """Whether a part does as released code does and takes padding in: then it must be as long as it was."""
        parts = (module for module in self.modules() if isinstance(module, Part))
        return any(part.config.get("variant") == "official" for part in parts)

    def _embed(self, encoded: LocalFeatures, projected: LocalFeatures) -> SetPrediction:
        summary = projected.summary if self.pool is None else self.pool(projected)
        if not self.sets.needs_global:
            summary = None
        prediction: SetPrediction = self.sets(projected if self.reads == "projected" else encoded, summary)
        return prediction

    def is_encoded(self, inputs: Inputs) -> bool:
        """Whether these are features that the encoder would have made, rather than what it takes."""
        return isinstance(inputs, LocalFeatures) and self.encoder.takes != "features"

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Optimiser groups: the encoder's body at its own pace, all else at `lr`."""
        groups = self.encoder.parameter_groups(lr, weight_decay)
        groups = [{**group, "name": f"encoder.{group['name']}"} for group in groups]
        for name, part in (("project", self.project), ("pool", self.pool), ("sets", self.sets)):
            params = [] if part is None else list(part.parameters())
            if params:
                groups.append({"name": name, "params": params, "lr": lr, "weight_decay": weight_decay})
        return groups


def _without(features: LocalFeatures, keep: Tensor | None) -> LocalFeatures:
    return features if keep is None else LocalFeatures(features.values, features.mask & keep, features.summary)


def check_wiring(tower: Tower, side: str) -> None:
    """Raise where parts that are fine by themselves do not fit together."""
    if tower.sets.needs_global and tower.pool is None and not tower.encoder.makes_summary:
        raise ConfigError(
            f"{side}.sets {tower.sets.config['name']!r} adds a global feature, and the encoder "
            f"{tower.encoder.config['name']!r} makes none. Give {side}.pool, e.g. {side}.pool.name=max."
        )


GROUPS = 4
WORTHWHILE = 0.75
"""Share of the padded batch that the groups together may have: more, and cutting costs what it saves."""
SMALLEST = 32
"""Items in a group: fewer keep the processor waiting."""

Group = tuple[Tensor, int]
"""The rows of a group, and the tokens its longest item reaches to."""


def group_by_length(mask: Tensor) -> list[Group]:
    """Rows of like length together, where that saves something; otherwise none. mask: (B, N)."""
    if is_tracing():
        return []
    items, longest = mask.shape
    count = min(GROUPS, items // SMALLEST)
    if count < 2:
        return []
    reach = (mask * torch.arange(1, longest + 1, device=mask.device)).amax(1)
    order = reach.argsort(stable=True)
    found = [(rows, int(reach[rows[-1]])) for rows in order.tensor_split(count)]
    worthwhile = sum(len(rows) * length for rows, length in found) <= WORTHWHILE * items * longest
    return found if worthwhile else []


def split_groups(features: LocalFeatures, found: list[Group]) -> list[LocalFeatures]:
    """The groups of a batch, each without the padding that none of its rows needs."""
    items, width, dim = features.values.shape
    # One gather for all: its gradient then fills one tensor of the batch's size, not one for each group.
    places = [(rows[:, None] * width + torch.arange(length, device=rows.device)).flatten() for rows, length in found]
    tokens = features.values.reshape(items * width, dim).index_select(0, torch.cat(places))
    parts = tokens.split([len(place) for place in places])
    return [
        LocalFeatures(
            values.view(len(rows), length, dim),
            features.mask[rows, :length],
            None if features.summary is None else features.summary.index_select(0, rows),
        )
        for values, (rows, length) in zip(parts, found, strict=True)
    ]


def join_groups(parts: list[SetPrediction], rows: list[Tensor], length: int) -> SetPrediction:
    """The predictions of the groups as if they had been made together."""
    back = torch.cat(rows).argsort()
    vectors = torch.cat([part.vectors for part in parts]).index_select(0, back)
    residual = torch.cat([part.residual for part in parts]).index_select(0, back)
    attention = [_padded(part.attention, length) for part in parts if part.attention is not None]
    steps = [_padded(part.attention_steps, length) for part in parts if part.attention_steps is not None]
    logits = [part.logits for part in parts if part.logits is not None]
    states = [F.pad(part.states, (0, 0, 0, length - part.states.shape[1])) for part in parts if part.states is not None]
    return SetPrediction(
        vectors,
        torch.cat(attention).index_select(0, back) if attention else None,
        residual,
        torch.cat(steps, dim=1).index_select(1, back) if steps else None,
        torch.cat(logits).index_select(0, back) if logits else None,
        torch.cat(states).index_select(0, back) if states else None,
    )


def _padded(attention: Tensor, length: int) -> Tensor:
    return F.pad(attention, (0, length - attention.shape[-1]))
