"""VSE∞'s synthetic experiment (supplement, section 2.3): which designs of GPO can learn which pooling?

A GPO sees random sets and what a known pooling makes of them. Its loss is on the pooled vectors; what is measured are
its coefficients against the true ones. docs/reproduce.md says what the paper leaves open and what we chose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from polysem import masked_ops
from polysem.errors import ConfigError
from polysem.features import LocalFeatures
from polysem.pooling import GPO
from polysem.reproduction.gpo_table import SIZES, Sizes
from polysem.reproduction.patterns import coefficients

SHOWN = (10, 60, 120)
"""Sizes whose coefficients are kept for the plot: the smallest, the middle of those seen, the largest."""

_LARGEST = max(size for sizes in SIZES.values() for size in sizes)


@dataclass(frozen=True)
class Settings:
    """One for all designs and patterns. sizes_per_step: how many of the 81 training sizes each step draws a set of.
    width: dimensions of the random features."""

    steps: int = 1500
    learning_rate: float = 3e-3
    sizes_per_step: int = 20
    width: int = 16

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps must be 1 or more, got {self.steps}.")


@dataclass(frozen=True)
class Run:
    """What one training gave. rmse: by range of sizes. learned: coefficients of the sizes in `SHOWN`."""

    design: str
    pattern: str
    seed: int
    rmse: dict[Sizes, float]
    learned: dict[int, list[float]]
    cpu_seconds: float


def carry_out(
    design: str, pattern: str, seed: int, settings: Settings, stopped: Callable[[], bool] = lambda: False
) -> Run:
    """Train one design on one pattern and measure it."""
    began = time.process_time()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gpo = train(build(design), pattern, settings, stopped)
    return Run(
        design,
        pattern,
        seed,
        {
            name: rmse(learned(gpo, sizes), coefficients(pattern, sizes, max(sizes)), sizes)
            for name, sizes in SIZES.items()
        },
        {size: learned(gpo, [size])[0].tolist() for size in SHOWN},
        time.process_time() - began,
    )


def build(design: str) -> GPO:
    """All four end in GPO's own softmax; rows of the position table past 100 are never trained."""
    if design == "interp":
        return GPO(generator="interpolation")
    if design == "cos-sin-mlp":
        return GPO(generator="mlp")
    return GPO(generator="bigru", position="index" if design == "index-bigru" else "sincos", max_length=_LARGEST)


def train(gpo: GPO, pattern: str, settings: Settings, stopped: Callable[[], bool] = lambda: False) -> GPO:
    seen = SIZES["seen"]
    truth = coefficients(pattern, seen, seen[-1])
    optimiser = torch.optim.Adam(gpo.parameters(), settings.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    for _ in range(settings.steps):
        if stopped():
            raise KeyboardInterrupt
        drawn = torch.randperm(len(seen))[: settings.sizes_per_step]
        sets = LocalFeatures.from_lengths(torch.rand(len(drawn), seen[-1], settings.width), drawn + seen[0])
        loss = F.mse_loss(gpo(sets), pooled(sets, truth[drawn]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return gpo


def pooled(sets: LocalFeatures, theta: Tensor) -> Tensor:
    """(B, N, D) sets pooled with known coefficients (B, N) of their sorted values -> (B, D)."""
    return torch.einsum("bn,bnd->bd", theta, masked_ops.sort_descending(sets.values, sets.mask))


@torch.no_grad()
def learned(gpo: GPO, sizes: Sequence[int]) -> Tensor:
    """(S, largest size): a GPO's coefficients for sets of these sizes, 0 past each."""
    # They depend on the size alone: any features will do.
    return gpo.coefficients(LocalFeatures.from_lengths(torch.zeros(len(sizes), max(sizes), 1), list(sizes)))


def rmse(found: Tensor, true: Tensor, sizes: Sequence[int]) -> float:
    """The root mean square error over a set's positions, averaged over the sizes."""
    squares = (found - true).square().sum(1) / torch.tensor(sizes)
    return float(squares.sqrt().mean())
