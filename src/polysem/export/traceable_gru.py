"""torch's GRU and transformer layer over padded items, of operations that every runtime has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polysem import masked_ops


def both_ways(gru: nn.GRU, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N, input), (B,) -> states (B, N, hidden) and final states (B, hidden), each the mean of both directions.

    Each item is turned around within its own length, so that the way back does not begin in the padding.
    """
    place = torch.arange(x.shape[1], device=x.device)
    turned = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)[..., None]
    there = _one_way(gru, x, "")
    back = _one_way(gru, x.gather(1, turned.expand(-1, -1, x.shape[2])), "_reverse")
    back = back.gather(1, turned.expand(-1, -1, back.shape[2]))
    last = there.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, there.shape[2])).squeeze(1)
    return (there + back) / 2, (last + back[:, 0]) / 2


def _one_way(gru: nn.GRU, x: Tensor, way: str) -> Tensor:
    weights = [getattr(gru, f"{kind}_{part}_l0{way}") for kind in ("weight", "bias") for part in ("ih", "hh")]
    start = x.new_zeros(1, x.shape[0], gru.hidden_size)
    # has_biases, num_layers, dropout, train, bidirectional, batch_first
    return torch.gru(x, start, weights, True, 1, 0.0, False, False, True)[0]


def encode_layer(layer: nn.TransformerEncoderLayer, x: Tensor, src_key_padding_mask: Tensor) -> Tensor:
    """torch's own takes the number of items for a constant."""
    if layer.norm_first:
        x = x + attend(layer.self_attn, layer.norm1(x), src_key_padding_mask)
        return x + _feed_forward(layer, layer.norm2(x))
    x = layer.norm1(x + attend(layer.self_attn, x, src_key_padding_mask))
    return torch.as_tensor(layer.norm2(x + _feed_forward(layer, x)))


def attend(attention: nn.MultiheadAttention, x: Tensor, padding: Tensor) -> Tensor:
    """Self-attention of (B, N, D) that leaves `padding` (B, N) unread."""
    items, tokens = padding.shape
    read = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    query, key, value = read.view(items, tokens, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    logits = query @ key.transpose(-1, -2) / attention.head_dim**0.5
    weights = masked_ops.softmax(logits, ~padding[:, None, None], dim=-1)
    mixed: Tensor = attention.out_proj((weights @ value).transpose(1, 2).flatten(2))
    return mixed


def _feed_forward(layer: nn.TransformerEncoderLayer, x: Tensor) -> Tensor:
    hidden: Tensor = layer.linear2(layer.activation(layer.linear1(x)))
    return hidden
