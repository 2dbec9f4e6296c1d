"""The pooling weights that a GPO shall find: the patterns of VSE∞'s synthetic experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def average(n: int) -> Tensor:
    return torch.ones(n)


def largest(count: int) -> Callable[[int], Tensor]:
    """The mean of the `count` largest values."""
    return lambda n: (torch.arange(n) < count).float()


def top_half(n: int) -> Tensor:
    # An odd size counts its middle value in. (Rounding to even would move the edge back and forth from size to size.)
    return (torch.arange(n) < (n + 1) // 2).float()


def linear(n: int) -> Tensor:
    """Falls to exactly 0 at the last position."""
    return torch.arange(n - 1.0, -1.0, -1.0)


PATTERNS: dict[str, Callable[[int], Tensor]] = {
    "A": average,
    "M-1": largest(1),
    "M-10": largest(10),
    "T-50%": top_half,
    "L": linear,
}
"""Name as in the paper -> size n -> (n,) weights of the sorted values, before they are made to sum to 1."""


def coefficients(pattern: str, sizes: Sequence[int], padded: int) -> Tensor:
    """(S, padded): the weights of sets of these sizes, each row summing to 1, with 0 past a set's size."""
    theta = torch.zeros(len(sizes), padded)
    for row, n in zip(theta, sizes, strict=True):
        weights = PATTERNS[pattern](n)
        row[:n] = weights / weights.sum()
    return theta
