"""Objective and regularisers as one loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polysem import objectives
from polysem.objectives import LabelledBatch, LabelObjective, Loss, Objective, Regulariser
from polysem.recipes import Recipe
from polysem.similarity import Similarity
from polysem.training.blanks import Blanks
from polysem.training.collapse import collapsed, collapsed_labels
from polysem.training.distillation import divergence
from polysem.training.guessing import Guessing


@dataclass(frozen=True, eq=False)
class Embedded:
    """What the loss reads of a side: unit vectors (B, K, D), and residuals where a regulariser wants them.
    length: how long the residuals are on average, to watch. logits: (B, C), what is said of each class. states:
    (B, N, D), of the tokens of this process, where hidden ones are guessed."""

    vectors: Tensor
    residual: Tensor | None = None
    length: float = 0.0
    logits: Tensor | None = None
    states: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        every = (self.vectors, self.residual, self.logits, self.states)
        return [tensor for tensor in every if tensor is not None]


@dataclass(frozen=True, eq=False)
class Verdict:
    """The scores of a batch, the objective, and what it would be if all scores were equal (of labels: all items)."""

    scores: Tensor
    objective: float
    collapsed: float


class Criterion(nn.Module):
    """scores of all pairs, or labels -> objective, plus weighted regularisers on vectors or residuals.

    guessing: the heads that guess hidden tokens, where the objective gives that a weight.
    """

    def __init__(self, recipe: Recipe, guessing: Guessing | None = None) -> None:
        super().__init__()
        objective = objectives.build(**recipe.objective)
        if not isinstance(objective, (Objective, LabelObjective)):
            raise TypeError(f"{recipe.objective['name']} is no objective")  # a checked recipe does not come here
        self.objective: Objective | LabelObjective = objective
        self.guessing, self.teacher = guessing, recipe.teacher
        self.luck: int | None = None
        """What the draws of a step are a function of; None leaves them to torch's state."""
        self.regularisers = [
            (entry, objectives.build(entry.name, **entry.knobs)) for entry in recipe.regularisers if entry.weight > 0
        ]

    @property
    def needs_residual(self) -> bool:
        return isinstance(self.objective, LabelObjective) or any(
            entry.on == "residual" for entry, _ in self.regularisers
        )

    def forward(
        self,
        images: Embedded,
        texts: Embedded,
        positives: Tensor,
        similarity: Similarity,
        labels: tuple[Tensor, Tensor] | None = None,
        blanks: Blanks | None = None,
        taught: Tensor | None = None,
    ) -> tuple[Loss, Verdict]:
        """-> the loss, and what the objective alone came to. labels: (I, C) and (T, C), for an objective of labels.
        blanks: what is hidden of the tokens of this process. taught: (I, T), the teacher's scores."""
        of_labels = isinstance(self.objective, LabelObjective)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not of_labels):  # to watch, where labels are the loss
            scores = similarity.scores(images.vectors, texts.vectors)
        with torch.random.fork_rng([scores.device] if scores.device.type == "cuda" else []):
            if self.luck is not None:
                torch.manual_seed(self.luck)
            main, equal = self._main(images, texts, positives, scores, labels)
            verdict = Verdict(scores.detach(), float(main.total.detach()), equal)
            return self._judge(images, texts, self._with_teacher(main, scores, taught), verdict, blanks)

    def _main(
        self,
        images: Embedded,
        texts: Embedded,
        positives: Tensor,
        scores: Tensor,
        labels: tuple[Tensor, Tensor] | None,
    ) -> tuple[Loss, float]:
        """The objective, and what it would be if all scores were equal, or all items alike."""
        if isinstance(self.objective, LabelObjective):
            if labels is None:
                raise TypeError("an objective of labels needs labels")  # training gives them
            image, text = (
                LabelledBatch(side.vectors, side.vectors if side.residual is None else side.residual, side.logits, own)
                for side, own in zip((images, texts), labels, strict=True)
            )
            return self.objective(image, text, positives), collapsed_labels(self.objective, image, text, positives)
        # Before the objective, so that one which draws its number of negatives draws the same for both.
        equal = collapsed(self.objective, scores.detach(), positives)
        return self.objective(scores, positives), equal

    def _with_teacher(self, main: Loss, scores: Tensor, taught: Tensor | None) -> Loss:
        """The objective gives up the teacher's share of the loss."""
        if self.teacher is None or taught is None:
            return main
        share, apart = self.teacher.weight, divergence(scores, taught.to(scores.dtype), self.teacher.temperature)
        return Loss((1 - share) * main.total + share * apart, {**main.parts, "teacher": apart}, main.info)

    def _judge(
        self, images: Embedded, texts: Embedded, main: Loss, verdict: Verdict, blanks: Blanks | None
    ) -> tuple[Loss, Verdict]:
        total, parts = main.total, dict(main.parts)
        if self.guessing is not None and blanks is not None and images.states is not None and texts.states is not None:
            guessed: Loss = self.guessing(images.states, texts.states, blanks)
            total = total + getattr(self.objective, "hidden_weight", 0.0) * guessed.total
            parts |= guessed.parts
        for entry, regulariser in self.regularisers:
            extra: Loss = _regularise(regulariser, images, texts, entry.on)
            total = total + entry.weight * extra.total
            parts[entry.name] = extra.total
        return Loss(total, parts, main.info), verdict


def _regularise(part: nn.Module, images: Embedded, texts: Embedded, on: str) -> Loss:
    if not isinstance(part, Regulariser):
        raise TypeError(f"{type(part).__name__} is no regulariser")
    if on == "vectors":
        return part(images.vectors, texts.vectors)  # type: ignore[no-any-return]
    return part(images.residual, texts.residual)  # type: ignore[no-any-return]
