"""DivE's aggregation block: K slots read the tokens over several iterations."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from polysem.dropout import Dropout
from polysem.sets import batch_threads
from polysem.sets.attention import Competition, SlotAttention, TokenMemory


def relative_sinusoids(mask: Tensor, dim: int) -> Tensor:
    """(B, N) -> (B, N, dim): sinusoids of position / length * 2 pi, positions counted from 1 over the real tokens."""
    position = mask.long().cumsum(1) / (mask.sum(1, keepdim=True) + 1e-6) * (2 * math.pi)
    column = torch.arange(dim, device=mask.device)
    angles = position[..., None] / 10_000 ** (2 * (column // 2) / dim)
    return torch.where(column % 2 == 0, angles.sin(), angles.cos())


class FeedForward(nn.Sequential):
    def __init__(self, dim: int, mult: int, dropout: float) -> None:
        super().__init__(
            nn.LayerNorm(dim), nn.Linear(dim, mult * dim), nn.GELU(), Dropout(dropout), nn.Linear(mult * dim, dim)
        )


class SlotUpdate(nn.Module):
    """One update of the slots: attend, add (or pass through a GRU), feed forward."""

    def __init__(
        self, dim: int, input_dim: int, heads: int, head_dim: int, ff_mult: int, dropout: float, gru: bool
    ) -> None:
        super().__init__()
        self.attention = SlotAttention(dim, input_dim, heads, head_dim, dropout)
        self.gru = nn.GRUCell(dim, dim) if gru else None
        self.feed_forward = FeedForward(dim, ff_mult, dropout)

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
            SlotUpdate(dim, input_dim, heads, head_dim, ff_mult, dropout, gru) for _ in range(1 if tied else iterations)
        )
        self.tied = tied
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """-> slots (B, K, dim), attention (T, B, H, K, N) of every iteration."""
        if self.training and not hasattr(self, "slots"):
            slots, attention = self._aggregate(x, mask)  # it draws the slots, which threads must not
        else:
            slots, attention = batch_threads.by_items(self._aggregate, self, x, mask)
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
