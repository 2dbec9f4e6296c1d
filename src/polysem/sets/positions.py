"""Where a token stands in its sentence, for attention keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def relative_sinusoids(mask: Tensor, dim: int) -> Tensor:
    """(B, N) -> (B, N, dim): sinusoids of position / length * 2 pi, positions counted from 1 over the real tokens."""
    position = mask.long().cumsum(1) / (mask.sum(1, keepdim=True) + 1e-6) * (2 * math.pi)
    column = torch.arange(dim, device=mask.device)
    angles = position[..., None] / 10_000 ** (2 * (column // 2) / dim)
    return torch.where(column % 2 == 0, angles.sin(), angles.cos())
