"""What the diagnosis looks at, measured on the tensors of one step."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from polysem import masked_ops
from polysem.objectives import LabelledBatch, LabelObjective, Objective

# Scores this far apart are as good as equal, and float32 still tells them apart.
_NEARLY_EQUAL = 1e-4


@torch.no_grad()
def collapsed(objective: Objective, scores: Tensor, positives: Tensor) -> float:
    """What the objective would say if every score of this batch were the same: the loss of a collapsed model.

    2 * B * margin for the summed hinge on the hardest negative, ln B for InfoNCE. Nothing about the objective or the
    random state is changed. An objective that draws (AdOpt with a random K) draws here what its next call will draw:
    call this just before the loss to compare the two like with like.
    """
    equal = torch.full_like(scores, float(scores.float().mean()), dtype=torch.float32)
    devices = [scores.device] if scores.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.autocast(scores.device.type, enabled=False):
        total = float(objective.loss(equal, positives).total)
        if total == 0:
            # Semi-hard mining counts only negatives strictly below the match: of equal scores, none. Take the limit.
            generator = torch.Generator().manual_seed(0)
            ripple = torch.rand(scores.shape, generator=generator).to(equal.device).masked_fill(positives, 0.5)
            total = float(objective.loss(equal + _NEARLY_EQUAL * ripple, positives).total)
    return total


@torch.no_grad()
def collapsed_labels(
    objective: LabelObjective, images: LabelledBatch, texts: LabelledBatch, positives: Tensor
) -> float:
    """What an objective of labels would say if every item of a side said the same of the classes: their average."""

    def alike(side: LabelledBatch) -> LabelledBatch:
        logits = None if side.logits is None else _mean(side.logits)
        return replace(side, vectors=masked_ops.unit(_mean(side.vectors)), residual=_mean(side.residual), logits=logits)

    return float(objective.loss(alike(images), alike(texts), positives).total)


@torch.no_grad()
def circular_variance(vectors: Tensor) -> float:
    """(B, K, D) -> 1 - |mean of the unit elements|, averaged over the batch: 0 where all elements of a set agree."""
    return float((1 - masked_ops.unit(vectors.float()).mean(1).norm(dim=-1)).clamp(min=0).mean())


@torch.no_grad()
def supervision(gradient: Tensor) -> tuple[float, ...]:
    """(B, K, D) gradient of the loss by the elements -> each element's share of its length. All 0 if there is none."""
    lengths = gradient.float().norm(dim=-1).sum(0)
    total = lengths.sum()
    return tuple((lengths / total).tolist()) if bool(total > 0) else (0.0,) * len(lengths)


def _mean(rows: Tensor) -> Tensor:
    return rows.mean(0, keepdim=True).expand_as(rows)
