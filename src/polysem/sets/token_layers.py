"""The layers of label-wise semantic sharing's transformer, as its authors wrote them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SpreadNorm(nn.Module):
    """weight * (x - mean) / (std + 1e-6) + bias, with the unbiased deviation: not nn.LayerNorm's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (x.std(-1, keepdim=True) + 1e-6) + self.bias


class Layer(nn.Module):
    """Pre-norm self-attention and feed-forward, each added to what it read."""

    def __init__(self, dim: int, heads: int, ff: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.attention_norm, self.feed_norm = SpreadNorm(dim), SpreadNorm(dim)
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.expand, self.contract = nn.Linear(dim, ff), nn.Linear(ff, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """(B, N, D) -> (B, N, D). real: (B, 1, 1, N) the tokens to attend to; None for all."""
        normed = self.attention_norm(x)
        query, key, value = (self._split(part(normed)) for part in (self.query, self.key, self.value))
        rate = self.rate if self.training else 0.0
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=real, dropout_p=rate)
        x = x + self.dropout(self.out(read.transpose(1, 2).flatten(2)))
        result: Tensor = x + self.dropout(self.contract(self.dropout(self.expand(self.feed_norm(x)).relu())))
        return result

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
