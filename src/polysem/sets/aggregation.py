"""DivE's aggregation block: K slots read the tokens over several iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from polysem import masked
from polysem.sets.positions import relative_sinusoids


@dataclass(frozen=True)
class Competition:
    """Who competes in the attention.

    over: "slots" (slot attention: the slots share out each token) or "tokens" (the usual transformer attention: each
    slot shares itself out over the tokens).
    padding_competes: the released code's bug, in which padding is shared out evenly among the slots and then read.
    """

    over: Literal["slots", "tokens"]
    padding_competes: bool = False


class SlotAttention(nn.Module):
    """Multi-head attention from slots to tokens, in two halves: what is read of the tokens, and how slots read it."""

    def __init__(self, dim: int, input_dim: int, heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, head_dim**-0.5
        self.norm = nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(input_dim)
        self.to_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_k = nn.Linear(input_dim, heads * head_dim, bias=False)
        self.to_v = nn.Linear(input_dim, heads * head_dim, bias=False)
        self.to_out = nn.Linear(heads * head_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def read(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, N, input_dim) -> keys, values (B, H, N, E). They do not change over iterations of tied weights."""
        context = self.norm_context(x)
        keys = self.to_k(context if positions is None else context + positions)
        return self._split(keys), self._split(self.to_v(context))

    def forward(
        self, slots: Tensor, keys: Tensor, values: Tensor, mask: Tensor, how: Competition
    ) -> tuple[Tensor, Tensor]:
        """-> update (B, K, D), attention (B, H, K, N) before it is normalised over tokens."""
        logits = self._split(self.to_q(self.norm(slots))) @ keys.transpose(-1, -2) * self.scale
        real = mask[:, None, None]
        if how.over == "tokens":
            attention = weights = masked.softmax(logits, real, dim=-1)
        else:
            attention = logits.softmax(-2).masked_fill(~real, 1 / slots.shape[1] if how.padding_competes else 0.0)
            weights = attention / (attention.sum(-1, keepdim=True) + 1e-7)
        read: Tensor = (weights @ values).transpose(1, 2).flatten(2)
        return self.dropout(self.to_out(read)), attention

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class FeedForward(nn.Sequential):
    def __init__(self, dim: int, mult: int, dropout: float) -> None:
        super().__init__(
            nn.LayerNorm(dim), nn.Linear(dim, mult * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(mult * dim, dim)
        )


class Iteration(nn.Module):
    """One update of the slots: attend, add (or pass through a GRU), feed forward."""

    def __init__(
        self, dim: int, input_dim: int, heads: int, head_dim: int, ff_mult: int, dropout: float, gru: bool
    ) -> None:
        super().__init__()
        self.attention = SlotAttention(dim, input_dim, heads, head_dim, dropout)
        self.gru = nn.GRUCell(dim, dim) if gru else None
        self.feed_forward = FeedForward(dim, ff_mult, dropout)

    def forward(
        self, slots: Tensor, keys: Tensor, values: Tensor, mask: Tensor, how: Competition
    ) -> tuple[Tensor, Tensor]:
        update, attention = self.attention(slots, keys, values, mask, how)
        if self.gru is None:
            slots = slots + update
        else:
            slots = self.gru(update.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots + self.feed_forward(slots), attention


class AggregationBlock(nn.Module):
    """(B, N, input_dim) tokens -> (B, K, dim) slots after `iterations` updates with tied or separate weights."""

    def __init__(
        self,
        *,
        dim: int,
        input_dim: int,
        k: int,
        iterations: int,
        tied: bool,
        heads: int,
        head_dim: int,
        ff_mult: int,
        dropout: float,
        gru: bool,
        learned_slots: bool,
        sine_positions: bool,
        how: Competition,
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
        self.updates = nn.ModuleList(
            Iteration(dim, input_dim, heads, head_dim, ff_mult, dropout, gru) for _ in range(1 if tied else iterations)
        )
        self.tied = tied
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """-> slots (B, K, dim), attention (T, B, H, K, N) of every iteration."""
        positions = None
        if self.sine_positions:
            counted = torch.ones_like(mask) if self.how.padding_competes else mask
            positions = relative_sinusoids(counted, x.shape[-1]).to(x.dtype)
        slots = self.initial_slots(len(x))
        steps = []
        memory: tuple[Tensor, Tensor] | None = None
        for step in range(self.iterations):
            update = cast(Iteration, self.updates[0 if self.tied else step])
            if memory is None or not self.tied:
                memory = update.attention.read(x, positions)
            slots, attention = update(slots, *memory, mask, self.how)
            steps.append(attention)
        return self.norm(slots), torch.stack(steps)

    def initial_slots(self, items: int) -> Tensor:
        """(items, K, dim)."""
        if hasattr(self, "slots"):
            return self.slots.expand(items, -1, -1)
        noise = self.slot_noise.expand(items, -1, -1)
        noise = torch.randn_like(noise) if self.training else noise
        return self.slot_mean + self.slot_log_std.exp() * noise
