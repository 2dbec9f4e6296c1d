"""Masked arithmetic over the tokens of an item: padding neither counts nor leaks, whatever it holds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

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
    filled = x.masked_fill(~mask[..., None], sentinel).transpose(1, 2).contiguous()
    ranked = filled.sort(dim=-1, descending=True).values.transpose(1, 2)
    return ranked.masked_fill(~ranks(mask)[..., None], 0.0)


def ranks(mask: Tensor) -> Tensor:
    """(B, N) bool: True for the first n_b sorted slots of an item with n_b real tokens."""
    return torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
