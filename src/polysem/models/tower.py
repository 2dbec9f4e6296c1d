"""One side of a model: raw input, or the features an encoder made of it earlier, to a set of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from polysem.encoders import Encoder, Tokens
from polysem.errors import ConfigError
from polysem.features import LocalFeatures
from polysem.models import length_buckets
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
        groups = length_buckets.groups(projected.mask) if self.sets.works_on_tokens and not self.reads_padding else []
        if len(groups) < 2:
            return self._embed(encoded, projected)
        cut = length_buckets.split(projected, groups)
        read = cut if self.reads == "projected" else length_buckets.split(encoded, groups)
        parts = [self._embed(*both) for both in zip(read, cut, strict=True)]
        return length_buckets.joined(parts, [rows for rows, _ in groups], projected.mask.shape[1])

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
