"""Masked arithmetic over the tokens of an item: padding neither counts nor leaks, whatever it holds."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polysem import processes, threads

UNIT_EPS = 1e-6
"""Norm under which a vector has no direction. Larger than usual so that the gradient at a zero vector stays sane."""


def unit(x: Tensor) -> Tensor:
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

    (B, N, D), (B, N) -> (B, N, D). `sentinel` stands in for padding while sorting.
    """
    # Sorting along the last, contiguous axis is several times faster than along the middle one.
    columns = x.masked_fill(~mask[..., None], sentinel).transpose(1, 2).contiguous()
    wants_gradient = torch.is_grad_enabled() and x.requires_grad
    if x.device.type == "cpu" and x.dtype == torch.float32 and not wants_gradient:
        columns = _sort_in_place(columns)
    else:
        columns = columns.sort(dim=-1, descending=True).values
    return columns.transpose(1, 2).masked_fill(~ranks(mask)[..., None], 0.0)


def _sort_in_place(columns: Tensor) -> Tensor:
    """Sort the last axis, largest first, by numpy's vectorised sort: without the indices that a gradient needs, it is
    four times as fast as torch's, on one thread."""
    ascending = columns.detach().neg_().numpy()
    rows = -(-len(ascending) // threads.count(columns.device)) if ascending.size > 1 << 16 else len(ascending)
    parts = range(0, len(ascending), rows)
    threads.run([partial(ascending[i : i + rows].sort, axis=-1) for i in parts], columns.device)
    return torch.from_numpy(ascending).neg_()


def ranks(mask: Tensor) -> Tensor:
    """(B, N) bool: True for the first n_b sorted slots of an item with n_b real tokens."""
    return torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)


def batch_norm(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """Batch norm of real tokens (M, D). A single one has no variance, so in training too it meets the running ones."""
    if norm.training and len(rows) == 1:
        return F.batch_norm(
            rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False, eps=norm.eps
        )
    if norm.training and processes.world_size() > 1:
        return _batch_norm_of_all(norm, rows)
    normed: Tensor = norm(rows)
    return normed


def _batch_norm_of_all(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """Batch norm over the tokens of all processes, so that several train as one would. (torch's own is for GPUs.)"""
    count = processes.total(torch.tensor(float(len(rows)), device=rows.device))
    mean = processes.total(rows.sum(0)) / count
    variance = processes.total((rows - mean).square().sum(0)) / count
    if norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None:
        with torch.no_grad():
            momentum = norm.momentum if norm.momentum is not None else 0.1
            norm.running_mean.lerp_(mean.detach(), momentum)
            norm.running_var.lerp_((variance * count / (count - 1)).detach(), momentum)
            norm.num_batches_tracked += 1
    return (rows - mean) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias
