"""Objective and regularisers as one loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polysem import objectives
from polysem.objectives import Loss, Objective, Regulariser
from polysem.recipes import Recipe
from polysem.similarity import Similarity
from polysem.training.measures import collapsed


@dataclass(frozen=True, eq=False)
class Embedded:
    """What the loss reads of a side: unit vectors (B, K, D), and residuals where a regulariser wants them.
    length: how long the residuals are on average, to watch."""

    vectors: Tensor
    residual: Tensor | None = None
    length: float = 0.0

    def tensors(self) -> list[Tensor]:
        return [self.vectors] if self.residual is None else [self.vectors, self.residual]


@dataclass(frozen=True, eq=False)
class Verdict:
    """The scores of a batch, the objective on them, and what it would be if all scores were equal."""

    scores: Tensor
    objective: float
    collapsed: float


class Criterion(nn.Module):
    """scores of all pairs -> objective, plus weighted regularisers on vectors or residuals."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        objective = objectives.build(**recipe.objective)
        if not isinstance(objective, Objective):
            raise TypeError(f"{recipe.objective['name']} is no objective")  # a checked recipe does not come here
        self.objective: Objective = objective
        self.luck: int | None = None
        """What the draws of a step are a function of; None leaves them to torch's state."""
        self.regularisers = [
            (entry, objectives.build(entry.name, **entry.knobs)) for entry in recipe.regularisers if entry.weight > 0
        ]

    @property
    def needs_residual(self) -> bool:
        return any(entry.on == "residual" for entry, _ in self.regularisers)

    def forward(
        self, images: Embedded, texts: Embedded, positives: Tensor, similarity: Similarity
    ) -> tuple[Loss, Verdict]:
        """-> the loss, and what the objective alone came to."""
        scores = similarity.scores(images.vectors, texts.vectors)
        with torch.random.fork_rng([scores.device] if scores.device.type == "cuda" else []):
            if self.luck is not None:
                torch.manual_seed(self.luck)
            return self._judge(images, texts, positives, scores)

    def _judge(self, images: Embedded, texts: Embedded, positives: Tensor, scores: Tensor) -> tuple[Loss, Verdict]:
        # Before the objective, so that one which draws its number of negatives draws the same for both.
        equal = collapsed(self.objective, scores.detach(), positives)
        main = self.objective(scores, positives)
        total, parts = main.total, dict(main.parts)
        for entry, regulariser in self.regularisers:
            extra: Loss = _regularise(regulariser, images, texts, entry.on)
            total = total + entry.weight * extra.total
            parts[entry.name] = extra.total
        return Loss(total, parts, main.info), Verdict(scores.detach(), float(main.total.detach()), equal)


def _regularise(part: nn.Module, images: Embedded, texts: Embedded, on: str) -> Loss:
    if not isinstance(part, Regulariser):
        raise TypeError(f"{type(part).__name__} is no regulariser")
    if on == "vectors":
        return part(images.vectors, texts.vectors)  # type: ignore[no-any-return]
    return part(images.residual, texts.residual)  # type: ignore[no-any-return]
