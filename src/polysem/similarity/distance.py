"""Euclidean distances between all pairs, by one matrix product."""

from __future__ import annotations

import torch
from torch import Tensor

DISTANCE_FLOPS = 4
"""Per pair, from the inner product to the distance: sum of squares, difference, clamp and root."""


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """(..., M, D), (..., D, N) -> (..., M, N)."""
    squares = x.square().sum(-1, keepdim=True) + y.square().sum(-2, keepdim=True)
    return (squares - 2 * x @ y).clamp(min=0)


def distances(x: Tensor, y: Tensor) -> Tensor:
    """The root of `squared_distances`, with gradient 0 where two points coincide."""
    squared = squared_distances(x, y)
    together = squared == 0  # not "squared > 0", which would take NaN for a perfect match
    return torch.where(together, 0.0, torch.where(together, 1.0, squared).sqrt())
