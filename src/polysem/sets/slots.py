"""DivE's set predictor, and its ablation without competition between the slots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.dropout import Rate
from polysem.errors import InputError, unknown
from polysem.features import LocalFeatures
from polysem.sets.base import SetPrediction, SetPredictor, registry
from polysem.sets.slot_attention import AggregationBlock, Competition, SlotUpdate

# The released code's names inside one iteration, and ours.
_ITERATION_KEYS = {
    "0.fn.to_q": "attention.to_q",
    "0.fn.to_k": "attention.to_k",
    "0.fn.to_v": "attention.to_v",
    "0.fn.to_out.0": "attention.to_out",
    "0.norm": "attention.norm",
    "0.norm_context": "attention.norm_context",
    "2.norm": "feed_forward.0",
    "2.fn.net.0": "feed_forward.1",
    "2.fn.net.3": "feed_forward.4",
}


@registry.register("slots")
class Slots(SetPredictor):
    """DivE's set predictor: slots compete for the tokens, so that each element comes to hold another meaning.

    Its three changes to slot attention can each be switched off: `learned_slots` (else drawn from a learned normal),
    `residual_update` (else a GRU), `add_global` (else the slots stand alone).

    variant "official" lets padding in as the released code does: a padded token is shared out evenly among the slots,
    and sine positions are relative to the padded length.
    """

    works_on_tokens = False
    over: ClassVar[Literal["slots", "tokens"]] = "slots"
    """Who shares out whom: see `Competition`."""

    def __init__(
        self,
        dim: PositiveInt,
        k: PositiveInt = 4,
        input_dim: PositiveInt | None = None,
        iterations: PositiveInt = 4,
        tied: bool = True,
        heads: PositiveInt = 4,
        head_dim: PositiveInt = 512,
        ff_mult: PositiveInt = 4,
        dropout: Rate = 0.0,
        position: Literal["none", "sine"] = "none",
        learned_slots: bool = True,
        residual_update: bool = True,
        add_global: bool = True,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        width = input_dim or dim
        super().__init__(dim, k, width)
        if position == "sine" and width % 2:
            self.reject_knobs(f"sine positions need an even input width, got {width}.")
        self.needs_global = add_global
        how = Competition(self.over, padding_competes=variant == "official")
        update = partial(SlotUpdate, dim, width, heads, head_dim, ff_mult, dropout, gru=not residual_update)
        self.block = AggregationBlock(dim, k, iterations, tied, learned_slots, position == "sine", how, update)
        self.global_norm = nn.LayerNorm(dim) if add_global else None

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        if not self.block.how.padding_competes:
            features = features.zero_padded()
        residual, steps = self.block(features.values, features.mask)
        joined = residual
        if self.global_norm is not None:
            joined = residual + self.global_norm(global_feature)[:, None]
        return SetPrediction(masked_ops.unit(joined), steps[-1].mean(1), residual, steps)

    @property
    def elements_compete(self) -> bool:  # type: ignore[override]
        return self.block.how.over == "slots"

    def token_shares(self, prediction: SetPrediction) -> Tensor | None:
        steps = prediction.attention_steps
        return None if steps is None else self.block.how.normalise(steps).mean(2)

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """DivE's names, of its SetPredictionModule or of the AggregationBlock alone (without `add_global`).

        Tied layers may be listed once or once per iteration.
        """
        own: dict[str, Tensor] = {}
        for name, value in state.items():
            renamed, tensor = self._rename(name), torch.as_tensor(value)
            if renamed in own and not torch.equal(own[renamed], tensor):
                raise InputError(
                    f"{name} differs from the same tensor of another iteration: this checkpoint's layers are not tied. "
                    "Build the part with tied=False."
                )
            own[renamed] = tensor
        return own

    def _rename(self, name: str) -> str:
        name = name.removeprefix("agg_block.")
        known = {"residual_norm": "global_norm", "latents": "block.slots", "last_layer.0": "block.norm"}
        for theirs, ours in known.items():
            if name == theirs or name.startswith(theirs + "."):
                return ours + name[len(theirs) :]
        match = re.fullmatch(r"layers\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is None or match[2] not in _ITERATION_KEYS:
            raise unknown("tensor of the released set prediction module", name, [*known, "layers.<i>.*"])
        step = 0 if self.block.tied else int(match[1])
        return f"block.updates.{step}.{_ITERATION_KEYS[match[2]]}.{match[3]}"


@registry.register("transformer")
class TransformerPredictor(Slots):
    """The `slots` block with ordinary attention: each slot spreads over the tokens and none has to differ from another.

    DivE's ablation of the competition between slots; never released.
    """

    over = "tokens"

    def __init__(
        self,
        dim: PositiveInt,
        k: PositiveInt = 4,
        input_dim: PositiveInt | None = None,
        iterations: PositiveInt = 4,
        tied: bool = True,
        heads: PositiveInt = 4,
        head_dim: PositiveInt = 512,
        ff_mult: PositiveInt = 4,
        dropout: Rate = 0.0,
        position: Literal["none", "sine"] = "none",
        add_global: bool = True,
    ) -> None:
        sizes = dim, k, input_dim, iterations, tied, heads, head_dim, ff_mult, dropout, position
        super().__init__(*sizes, add_global=add_global)
