"""Who lies near whom: the nearest points of each, and how much each of them counts for t-SNE."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from polysem import cpu_blocks

Progress = Callable[[int, int], None]

_BLOCK = 1 << 22
"""Distances held at once by a thread."""
_HALVINGS = 40


def nearest(points: Tensor, k: int, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
    """(n, d) -> the positions (n, k) of the k nearest other points, and their squared distances (n, k)."""
    n = len(points)
    places, squares = torch.empty(n, k, dtype=torch.long), torch.empty(n, k)
    lengths = points.square().sum(1)
    rows = max(1, _BLOCK // n)
    done = 0

    def block(first: int) -> None:
        nonlocal done
        own = slice(first, min(n, first + rows))
        found = torch.addmm(lengths, points[own], points.t(), alpha=-2)
        size = len(found)
        found[torch.arange(size), torch.arange(first, first + size)] = float("inf")
        near = found.topk(k, largest=False, sorted=False)
        places[own] = near.indices
        squares[own] = (near.values + lengths[own, None]).clamp_(min=0)
        done += size
        if progress is not None:
            progress(done, n)

    cpu_blocks.run([partial(block, first) for first in range(0, n, rows)], points.device)
    return places, squares


def affinities(squares: Tensor, perplexity: float) -> Tensor:
    """(n, k) squared distances -> (n, k) weights that sum to 1 in each row: p = softmax(-d² / 2σ²), with the σ of each
    point such that its weights count as `perplexity` neighbours, exp(entropy)."""
    squares = squares.double()
    squares = squares - squares.amin(1, keepdim=True)
    target = torch.tensor(perplexity, dtype=torch.float64).log()
    # Beyond the largest, all weight is on the nearest; under the smallest, it is spread evenly.
    scale = squares.mean(1, keepdim=True).clamp(min=1e-30)
    low, high = torch.full_like(scale, -20.0), torch.full_like(scale, 20.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weights = (-squares / scale * middle.exp()).softmax(1)
        entropy = -(weights * weights.clamp(min=1e-300).log()).sum(1, keepdim=True)
        sharp = entropy < target
        low, high = torch.where(sharp, low, middle), torch.where(sharp, middle, high)
    return weights.float()
