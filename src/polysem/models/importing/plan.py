"""What a checkpoint becomes: the config of a model, and which of its tensors go to which part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from torch import Tensor

from polysem.errors import PolysemError
from polysem.models.build import build
from polysem.models.importing.tensors import CheckpointError
from polysem.models.model import Model
from polysem.registry import Part

Variant = Literal["paper", "official"]


@dataclass(frozen=True)
class Wanted:
    """What the file leaves open. variant: whether padding leaks as in the released code. bert_heads: see `towers`."""

    variant: Variant
    bert_heads: int | None = None


@dataclass(frozen=True)
class Side:
    """A tower to be: its config, and the tensors of its parts by place, such as "encoder" or "sets.pooling".

    official: under the authors' names. own: under ours, for parts that were never theirs, such as BERT.
    dropped: tensors without effect on an embedding, each with the reason.
    """

    config: dict[str, Any]
    official: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    dim: int
    image: Side
    text: Side
    similarity: dict[str, Any]

    @property
    def dropped(self) -> list[str]:
        return [f"{side}: {what}" for side in ("image", "text") for what in getattr(self, side).dropped]

    def carry_out(self, file: str) -> Model:
        """The model with the checkpoint's weights."""
        try:
            model = build(dim=self.dim, image=self.image.config, text=self.text.config, similarity=self.similarity)
        except PolysemError as error:
            raise CheckpointError(f"{file} describes a model that cannot be built. {error}") from None
        for side, tower in (("image", self.image), ("text", self.text)):
            for place, state in tower.official.items():
                try:
                    cast(Part, model.get_submodule(f"{side}.{place}")).load_official(state)
                except PolysemError as error:
                    raise CheckpointError(f"{file}, {side}.{place}: {error}") from None
            for place, state in tower.own.items():
                try:
                    model.get_submodule(f"{side}.{place}").load_state_dict(dict(state))
                except RuntimeError as error:
                    problem = " ".join(str(error).split())
                    raise CheckpointError(
                        f"{file}, {side}.{place}: {problem:.400} These do not belong together: get the file again."
                    ) from None
        return model.eval()
