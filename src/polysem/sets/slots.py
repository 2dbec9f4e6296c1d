"""DivE's set predictor: slots that compete for the tokens over several iterations; and its ablation.

Attention from slots to tokens is computed in the order that takes the fewest multiplications.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from polysem import masked_ops
from polysem.dropout import Dropout, Rate
from polysem.errors import InputError, unknown
from polysem.features import LocalFeatures
from polysem.sets import batch_threads
from polysem.sets.base import SetPrediction, SetPredictor, add_residual, registry

AttentionPlan = Literal["projected", "folded", "composed"]


@dataclass(frozen=True)
class Competition:
    """Who competes in the attention.

    over: "slots" (slot attention: the slots share out each token) or "tokens" (the usual transformer attention: each
    slot shares itself out over the tokens).
    padding_competes: the released code's bug, in which padding is shared out evenly among the slots and then read.
    """

    over: Literal["slots", "tokens"]
    padding_competes: bool = False

    def normalise(self, attention: Tensor) -> Tensor:
        """(..., K, N) attention -> the share of each token in what a slot reads. A slot that competed reads the tokens
        in the proportion in which it won them."""
        return attention if self.over == "tokens" else attention / (attention.sum(-1, keepdim=True) + 1e-7)


@dataclass(frozen=True, eq=False)
class TokenMemory:
    """What slots read of a batch, over all iterations of tied weights.

    keys, values: (B, H, N, E) if "projected"; otherwise the tokens themselves, (B, 1, N, input_dim), for all heads.
    ask, answer: the weights of "composed" queries and outputs.
    """

    plan: AttentionPlan
    keys: Tensor
    values: Tensor
    ask: Tensor | None = None
    answer: Tensor | None = None


class SlotAttention(nn.Module):
    """Multi-head attention from slots to tokens, in two halves: what is read of the tokens, and how slots read it.

    q . k = (W_q s) . (W_k x) is one number however it is bracketed. With more tokens than slots, "folded" takes W_k to
    the slots, s -> W_k^T W_q s, and leaves the tokens as they are; so with the values and the output. "composed" also
    multiplies W_k^T W_q beforehand, which pays for narrow tokens. The plan with the fewest multiplications is taken.
    """

    def __init__(self, dim: int, input_dim: int, heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, head_dim**-0.5
        self.norm = nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(input_dim)
        self.to_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_k = nn.Linear(input_dim, heads * head_dim, bias=False)
        self.to_v = nn.Linear(input_dim, heads * head_dim, bias=False)
        self.to_out = nn.Linear(heads * head_dim, dim)
        self.dropout = Dropout(dropout)

    def plan(self, items: int, tokens: int, slots: int) -> AttentionPlan:
        """The cheapest for as many `slots` of an item as will ask, over all iterations."""
        if masked_ops.is_tracing():  # how many items will come is not known
            items, tokens = 1, int(tokens)
        inner, width = self.to_k.weight.shape
        dim = self.to_q.weight.shape[1]
        # Half of each: keys and values, queries and outputs, logits and what is read cost the same.
        attended = items * slots * tokens
        costs: dict[AttentionPlan, int] = {
            "projected": items * inner * (tokens * width + slots * dim) + attended * inner,
            "folded": items * inner * slots * (width + dim) + attended * self.heads * width,
            "composed": items * slots * dim * self.heads * width + dim * inner * width + attended * self.heads * width,
        }
        return min(costs, key=lambda plan: costs[plan])

    def read(self, x: Tensor, positions: Tensor | None, plan: AttentionPlan) -> TokenMemory:
        """(B, N, input_dim) -> what does not change over iterations of tied weights."""
        context = self.norm_context(x)
        located = context if positions is None else context + positions
        if plan == "projected":
            return TokenMemory(plan, self._split(self.to_k(located)), self._split(self.to_v(context)))
        if plan == "folded":
            return TokenMemory(plan, located[:, None], context[:, None])
        q, k, v = (self._by_head(part.weight) for part in (self.to_q, self.to_k, self.to_v))
        ask = (k.transpose(1, 2) @ q).flatten(0, 1)
        out = self.to_out.weight.view(len(self.to_out.weight), self.heads, -1).transpose(0, 1)
        answer = (out @ v).transpose(0, 1).flatten(1)
        return TokenMemory(plan, located[:, None], context[:, None], ask, answer)

    def forward(self, slots: Tensor, memory: TokenMemory, mask: Tensor, how: Competition) -> tuple[Tensor, Tensor]:
        """slots: (B, K, D), or (1, K, D) if they are the same for all. -> update (B, K, D), attention (B, H, K, N)
        before it is normalised over tokens."""
        items, real = mask.shape[0], mask[:, None, None]
        normed = self.norm(slots)
        if memory.ask is not None:
            queries = self._split(F.linear(normed, memory.ask))
        else:
            queries = self._split(self.to_q(normed))
            if memory.plan == "folded":
                queries = _per_head(queries, self._by_head(self.to_k.weight))
        queries = queries * self.scale
        logits = _times(queries.expand(items, -1, -1, -1), memory.keys.transpose(-1, -2))
        if how.over == "tokens":
            attention = masked_ops.softmax(logits, real, dim=-1)
        else:
            attention = logits.softmax(-2).masked_fill(~real, 1 / slots.shape[1] if how.padding_competes else 0.0)
        read = _times(how.normalise(attention), memory.values)
        if memory.plan == "folded":
            read = _per_head(read, self._by_head(self.to_v.weight).transpose(1, 2))
        read = read.transpose(1, 2).flatten(2)
        update = self.to_out(read) if memory.answer is None else F.linear(read, memory.answer, self.to_out.bias)
        return self.dropout(update), attention

    def _by_head(self, weight: Tensor) -> Tensor:
        return weight.view(self.heads, -1, weight.shape[1])

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def _times(x: Tensor, y: Tensor) -> Tensor:
    """(B, H, K, M), (B, H or 1, M, N) -> (B, H, K, N): where heads share their tokens, they go into one product."""
    if y.shape[1] == x.shape[1]:
        return x @ y
    # Slots before heads in memory: that is how linear maps leave them.
    rows = x.transpose(1, 2).flatten(1, 2)
    return (rows @ y.squeeze(1)).view(x.shape[0], x.shape[2], x.shape[1], -1).transpose(1, 2)


def _per_head(x: Tensor, weight: Tensor) -> Tensor:
    """(b, H, K, M), (H, M, N) -> (b, H, K, N)."""
    items, _, slots, _ = x.shape
    return (x.transpose(0, 1).flatten(1, 2) @ weight).view(len(weight), items, slots, -1).transpose(0, 1)


def relative_sinusoids(mask: Tensor, dim: int) -> Tensor:
    """(B, N) -> (B, N, dim): sinusoids of position / length * 2 pi, positions counted from 1 over the real tokens."""
    position = mask.long().cumsum(1) / (mask.sum(1, keepdim=True) + 1e-6) * (2 * math.pi)
    column = torch.arange(dim, device=mask.device)
    angles = position[..., None] / 10_000 ** (2 * (column // 2) / dim)
    return torch.where(column % 2 == 0, angles.sin(), angles.cos())


class SlotUpdate(nn.Module):
    """One update of the slots: attend, add (or pass through a GRU), feed forward."""

    def __init__(
        self, dim: int, input_dim: int, heads: int, head_dim: int, ff_mult: int, dropout: float, gru: bool
    ) -> None:
        super().__init__()
        self.attention = SlotAttention(dim, input_dim, heads, head_dim, dropout)
        self.gru = nn.GRUCell(dim, dim) if gru else None
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, ff_mult * dim), nn.GELU(), Dropout(dropout), nn.Linear(ff_mult * dim, dim)
        )

    def forward(self, slots: Tensor, memory: TokenMemory, mask: Tensor, how: Competition) -> tuple[Tensor, Tensor]:
        update, attention = self.attention(slots, memory, mask, how)
        if self.gru is None:
            slots = slots + update
        else:
            slots = slots.expand_as(update)
            slots = self.gru(update.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots + self.feed_forward(slots), attention


class AggregationBlock(nn.Module):
    """(B, N, input_dim) tokens -> (B, K, dim) slots after `iterations` updates with tied or separate weights."""

    def __init__(
        self,
        dim: int,
        k: int,
        iterations: int,
        tied: bool,
        learned_slots: bool,
        sine_positions: bool,
        how: Competition,
        make_update: Callable[[], SlotUpdate],
    ) -> None:
        super().__init__()
        self.how, self.iterations, self.sine_positions = how, iterations, sine_positions
        self.slot_noise: Tensor
        if learned_slots:
            self.slots = nn.Parameter(torch.randn(k, dim))
        else:
            self.slot_mean = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, dim)))
            self.slot_log_std = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, dim)))
            # Outside training the draw is fixed, so that an embedding is a function of its item alone.
            self.register_buffer("slot_noise", torch.randn(k, dim))
        self.updates = nn.ModuleList(make_update() for _ in range(1 if tied else iterations))
        self.tied = tied
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """-> slots (B, K, dim), attention (T, B, H, K, N) of every iteration."""
        if self.training and not hasattr(self, "slots"):
            slots, attention = self._aggregate(x, mask)  # it draws the slots, which threads must not
        else:
            slots, attention = batch_threads.run_in_parts(self._aggregate, self, x, mask)
        return slots, attention.transpose(0, 1)

    def _aggregate(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """-> slots (B, K, dim), attention (B, T, H, K, N)."""
        positions = None
        if self.sine_positions:
            counted = torch.ones_like(mask) if self.how.padding_competes else mask
            positions = relative_sinusoids(counted, x.shape[-1]).to(x.dtype)
        slots = self.initial_slots(x.shape[0])
        queries = slots.shape[1] * (self.iterations if self.tied else 1)
        plan = cast(SlotUpdate, self.updates[0]).attention.plan(x.shape[0], x.shape[1], queries)
        steps = []
        memory: TokenMemory | None = None
        for step in range(self.iterations):
            update = cast(SlotUpdate, self.updates[0 if self.tied else step])
            if memory is None or not self.tied:
                memory = update.attention.read(x, positions, plan)
            slots, attention = update(slots, memory, mask, self.how)
            steps.append(attention)
        return self.norm(slots), torch.stack(steps, dim=1)

    def initial_slots(self, items: int) -> Tensor:
        """(items, K, dim), or (1, K, dim) where every item starts from the same."""
        if hasattr(self, "slots"):
            return self.slots[None]
        noise = self.slot_noise[None]
        noise = torch.randn_like(noise.expand(items, -1, -1)) if self.training else noise
        return self.slot_mean + self.slot_log_std.exp() * noise


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

    gamma: None adds the slots to the global feature after a layer norm of each, as in the paper. A number is the start
    of a learned one in unit(unit(global) + gamma unit(slot)): elements begin near the global vector.

    variant "official" lets padding in as the released code does: a padded token is shared out evenly among the slots,
    and sine positions are relative to the padded length.
    """

    works_on_tokens = False
    added_knobs = frozenset({"gamma"})
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
        gamma: NonNegativeFloat | None = None,
    ) -> None:
        width = input_dim or dim
        super().__init__(dim, k, width)
        if position == "sine" and width % 2:
            self.reject_knobs(f"sine positions need an even input width, got {width}.")
        self.needs_global = add_global
        how = Competition(self.over, padding_competes=variant == "official")
        update = partial(SlotUpdate, dim, width, heads, head_dim, ff_mult, dropout, gru=not residual_update)
        self.block = AggregationBlock(dim, k, iterations, tied, learned_slots, position == "sine", how, update)
        if gamma is not None and not add_global:
            self.reject_knobs(f"gamma={gamma} is a step away from the global feature, and add_global is off.")
        self.global_norm = nn.LayerNorm(dim) if add_global and gamma is None else None
        self.gamma = None if gamma is None else nn.Parameter(torch.tensor([gamma]))

    @classmethod
    def makes_global_vector(cls, knobs: Mapping[str, Any]) -> bool:
        return cls.adds_global(knobs)

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        if not self.block.how.padding_competes:
            features = features.zero_padding()
        residual, steps = self.block(features.values, features.mask)
        attention = steps[-1].mean(1)
        if self.gamma is not None:
            vectors, center = add_residual(cast(Tensor, global_feature), residual, self.gamma)
            return SetPrediction(vectors, attention, residual, steps, global_vector=center)
        if self.global_norm is None:
            return SetPrediction(masked_ops.normalise(residual), attention, residual, steps)
        whole = self.global_norm(global_feature)
        vectors, center = masked_ops.normalise(residual + whole[:, None]), masked_ops.normalise(whole)
        return SetPrediction(vectors, attention, residual, steps, global_vector=center)

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
        gamma: NonNegativeFloat | None = None,
    ) -> None:
        sizes = dim, k, input_dim, iterations, tied, heads, head_dim, ff_mult, dropout, position
        super().__init__(*sizes, add_global=add_global, gamma=gamma)
