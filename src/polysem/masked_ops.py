"""Masked arithmetic over the tokens of an item: padding neither counts nor leaks, whatever it holds."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from polysem import cpu_blocks, distributed

UNIT_EPS = 1e-6
"""Norm under which a vector has no direction. Larger than usual so that the gradient at a zero vector stays sane."""


def is_tracing() -> bool:
    """Whether a graph is being recorded, as for ONNX: then nothing may depend on the values of the example."""
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return traced or torch.compiler.is_exporting()


def normalise(x: Tensor) -> Tensor:
    """Scale the last axis to length 1."""
    return F.normalize(x, dim=-1, eps=UNIT_EPS)


def softmax(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Softmax over `dim` in which masked-out entries have weight exactly 0. Each slice needs one real entry."""
    return logits.masked_fill(~mask, float("-inf")).softmax(dim)


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """(B, N, D), (B, N) -> (B, D): mean of the real tokens; padding must hold zeros."""
    return x.sum(1) / mask.sum(1, keepdim=True)


def sort_descending(x: Tensor, mask: Tensor, sentinel: float = float("-inf")) -> Tensor:
    """Sort every dimension's values over the tokens, largest first; slots past an item's length hold 0.

    (B, N, D), (B, N) -> (B, N, D). `sentinel` stands in for padding while sorting; padding must not hold NaN.
    """
    by_numpy = x.device.type == "cpu" and x.dtype == torch.float32 and not is_tracing()
    if by_numpy and torch.is_grad_enabled() and x.requires_grad:
        return cast(Tensor, _SortDescending.apply(x, mask, sentinel))  # type: ignore[no-untyped-call]
    # Sorting along the last, contiguous axis is several times faster than along the middle one.
    columns = x.masked_fill(~mask[..., None], sentinel).transpose(1, 2).contiguous()
    columns = _sort_in_place(columns) if by_numpy else columns.sort(dim=-1, descending=True).values
    return columns.transpose(1, 2).masked_fill(~ranks(mask)[..., None], 0.0)


def _sort_in_place(columns: Tensor) -> Tensor:
    """Sort the last axis, largest first, by numpy's vectorised sort: without the indices that a gradient needs, it is
    four times as fast as torch's, on one thread."""
    ascending = columns.detach().neg_().numpy()
    parts = [ascending[part.start : part.stop] for part in _split_items(columns)]
    cpu_blocks.run([partial(part.sort, axis=-1) for part in parts], columns.device)
    return torch.from_numpy(ascending).neg_()


class _SortDescending(torch.autograd.Function):
    """`sort_descending` with a gradient, several times as fast as by torch's sort.

    numpy's vectorised sort gives no permutation. So each value carries its own: a float32 leaves 29 bits of a double
    empty, and its token's number goes there. That breaks ties and changes no other order; rounding takes it off again.
    Item by item: one stays in a core's cache from one pass to the next.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, sentinel: float) -> Tensor:
        items, tokens, dim = x.shape
        values = torch.empty(items, tokens, dim)
        permutation = torch.empty(items, dim, tokens, dtype=torch.int16 if tokens < 1 << 15 else torch.int32)
        own, digits = torch.arange(tokens), (1 << tokens.bit_length()) - 1
        # The token's number would make a NaN of infinity. Padding sorts after that, unless the sentinel says where.
        # All with the low bits empty.
        infinity, beyond = torch.tensor([2.0**900, 2.0**1000], dtype=torch.float64)
        bottom = beyond if sentinel == -math.inf else -torch.tensor(sentinel).double()
        least, most = torch.where(mask, -infinity, bottom), torch.where(mask, infinity, bottom)
        lengths = mask.sum(1).tolist()

        def sort(some: range) -> None:
            columns = torch.empty(dim, tokens)
            for item in some:
                keys = columns.copy_(x[item].t()).neg_().double().clamp_(least[item], most[item])
                bits = keys.view(torch.int64).bitwise_or_(own)
                keys.numpy().sort(axis=-1)
                values[item].copy_(columns.copy_(keys).neg_().t())
                values[item, lengths[item] :] = 0.0
                permutation[item].copy_(bits.bitwise_and_(digits))

        cpu_blocks.run([partial(sort, part) for part in _split_items(x)], x.device)
        ctx.save_for_backward(permutation, mask)
        ctx.lengths, ctx.padding_ranks = lengths, sentinel != -math.inf
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        permutation, mask = ctx.saved_tensors
        of_x = torch.empty(gradient.shape)

        def spread(some: range) -> None:
            of_ranked, of_tokens = torch.empty(2, *permutation.shape[1:])
            for item in some:
                of_ranked.copy_(gradient[item].t())
                of_ranked[:, ctx.lengths[item] :] = 0.0
                of_tokens.scatter_(-1, permutation[item].long(), of_ranked)
                of_x[item].copy_(of_tokens.t())
                if ctx.padding_ranks:
                    of_x[item].masked_fill_(~mask[item, :, None], 0.0)

        cpu_blocks.run([partial(spread, part) for part in _split_items(gradient)], gradient.device)
        return of_x, None, None


def _split_items(x: Tensor) -> list[range]:
    """The items that each thread takes; all of them where a second thread would not pay."""
    count = cpu_blocks.count(x.device) if x.numel() > 1 << 16 else 1
    items = max(1, -(-len(x) // count))
    return [range(start, min(start + items, len(x))) for start in range(0, len(x), items)]


def ranks(mask: Tensor) -> Tensor:
    """(B, N) bool: True for the first n_b sorted slots of an item with n_b real tokens."""
    return torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)


def encoder_layer(layer: nn.TransformerEncoderLayer, x: Tensor, mask: Tensor) -> Tensor:
    """(B, N, D), (B, N) -> (B, N, D): a transformer layer in which real tokens attend to real tokens."""
    if not is_tracing():
        return cast(Tensor, layer(x, src_key_padding_mask=~mask))
    # torch's own, when traced, takes the number of items for a constant.
    if layer.norm_first:
        x = x + _self_attention(layer.self_attn, layer.norm1(x), mask)
        return x + _feed_forward(layer, layer.norm2(x))
    x = layer.norm1(x + _self_attention(layer.self_attn, x, mask))
    return cast(Tensor, layer.norm2(x + _feed_forward(layer, x)))


def _self_attention(attention: nn.MultiheadAttention, x: Tensor, mask: Tensor) -> Tensor:
    items, tokens = mask.shape
    projected = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    query, key, value = projected.view(items, tokens, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    weights = softmax(query @ key.transpose(-1, -2) / attention.head_dim**0.5, mask[:, None, None], dim=-1)
    return cast(Tensor, attention.out_proj((weights @ value).transpose(1, 2).flatten(2)))


def _feed_forward(layer: nn.TransformerEncoderLayer, x: Tensor) -> Tensor:
    return cast(Tensor, layer.linear2(layer.activation(layer.linear1(x))))


def batch_norm(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """Batch norm of real tokens (M, D). A single one has no variance, so in training too it meets the running ones."""
    if norm.training and len(rows) == 1 and distributed.world_size() == 1:
        return F.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    if norm.training and distributed.world_size() > 1:
        return _batch_norm_of_all(norm, rows)
    return cast(Tensor, norm(rows))


def _batch_norm_of_all(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """Batch norm over the tokens of all processes, so that several train as one would. (torch's own is for GPUs.)"""
    count = distributed.all_reduce(torch.tensor(float(len(rows)), device=rows.device))
    mean = distributed.all_reduce(rows.sum(0)) / count
    variance = distributed.all_reduce((rows - mean).square().sum(0)) / count
    if norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None:
        with torch.no_grad():
            momentum = norm.momentum if norm.momentum is not None else 0.1
            norm.running_mean.lerp_(mean.detach(), momentum)
            norm.running_var.lerp_((variance * count / (count - 1).clamp(min=1)).detach(), momentum)
            norm.num_batches_tracked += 1
    return (rows - mean) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias
