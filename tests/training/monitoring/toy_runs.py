"""Training runs small enough for a test: two linear towers over paired noise, and what their steps look like."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from polysem import objectives, similarity
from polysem.training.monitoring.diagnosis import (
    StepFacts,
    TrainingFinding,
    TrainingMonitor,
    circular_variance,
    collapsed_loss,
    gradient_shares,
)

SIDES = ("image", "text")


class Towers(nn.Module):
    """Sets of k vectors: a shared linear map plus one of its own for each element, as large as `apart` says."""

    def __init__(self, k: int = 1, width: int = 32, dim: int = 16, apart: float = 1.0, favour: float = 0.0) -> None:
        super().__init__()
        self.shared = nn.ModuleList(nn.Linear(width, dim) for _ in range(2))
        self.own = nn.ModuleList(nn.Linear(width, k * dim) for _ in range(2))
        # A direction that the first elements of both sides share: they are the closest pair from the start.
        favoured = torch.zeros(k, dim)
        favoured[0] = favour
        self.register_buffer("favoured", favoured)
        self.k, self.dim, self.apart = k, dim, apart

    def forward(self, side: int, x: torch.Tensor) -> torch.Tensor:
        elements = self.own[side](x).view(-1, self.k, self.dim)
        return self.shared[side](x)[:, None] + self.apart * elements + self.favoured


def pairs(count: int, width: int, signal: bool, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and texts that share what they show, or, without a signal, nothing. Like real features not centred."""
    image = torch.randn(count, width, generator=generator)
    noise = torch.randn(count, width, generator=generator)
    return image + 1, (image.flip(1) + 0.1 * noise if signal else noise) + 1


def facts_of_run(
    objective: str = "triplet",
    steps: int = 300,
    lr: float = 3e-3,
    k: int = 1,
    score: str = "smooth_chamfer",
    signal: bool = True,
    batch: int = 32,
    seed: int = 0,
    apart: float = 1.0,
    favour: float = 0.0,
    optimiser: type[torch.optim.Optimizer] = torch.optim.Adam,
    steps_per_epoch: int = 50,
    fixed: bool = True,
    **knobs: object,
) -> list[StepFacts]:
    """Train, and tell what every step looked like. fixed: a training set of 8 batches; else new pairs at each step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Towers(k, apart=apart, favour=favour)
    part, scorer = objectives.build(objective, **knobs), similarity.build(score if k > 1 else "cosine")
    weights = optimiser(model.parameters(), lr=lr)
    images, texts = pairs(8 * batch, 32, signal, generator)
    positives = torch.eye(batch, dtype=torch.bool)
    found = []
    for step in range(1, steps + 1):
        part.set_epoch(step // steps_per_epoch)
        if not fixed:
            images, texts = pairs(batch, 32, signal, generator)
        chosen = torch.randperm(len(images), generator=generator)[:batch]
        residuals = [model(0, images[chosen]), model(1, texts[chosen])]
        vectors = [F.normalize(residual, dim=-1) for residual in residuals]
        for side in vectors:
            side.retain_grad()
        scores = scorer(*vectors)
        if not bool(scores.isfinite().all()):
            break
        expected = collapsed_loss(part, scores.detach(), positives)
        loss = part(scores, positives)
        weights.zero_grad()
        loss.total.backward()
        norm = nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None)
        weights.step()
        sets = k > 1
        gradients = [side.grad for side in vectors]
        found.append(
            StepFacts(
                step=step,
                loss=float(loss.total.detach()),
                collapsed_loss=expected,
                collapse=part.collapse,
                grad_norm=float(norm),
                score_spread=float(scores.detach().std()),
                variance=dict(zip(SIDES, map(circular_variance, vectors), strict=True)) if sets else {},
                gradient_shares=dict(zip(SIDES, map(gradient_shares, gradients), strict=True)) if sets else {},
                norms={side: float(r.detach().norm(dim=-1).mean()) for side, r in zip(SIDES, residuals, strict=True)},
            )
        )
    return found


def diagnose(facts: list[StepFacts]) -> list[TrainingFinding]:
    monitor = TrainingMonitor()
    return [finding for step in facts for finding in monitor.observe(step)]
