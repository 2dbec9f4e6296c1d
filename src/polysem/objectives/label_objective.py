"""What an objective of labels is: what both sides say of each class, and which classes they have, to a loss."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polysem.errors import InputError, NonFiniteError, kind
from polysem.objectives.base import Collapse, Loss
from polysem.registry import Part


@dataclass(frozen=True, eq=False)
class Labelled:
    """A side of a batch. vectors, residual: (B, K, D), as its sets have them. logits, labels: (B, C), labels 0 or 1."""

    vectors: Tensor
    residual: Tensor
    logits: Tensor | None
    labels: Tensor


class LabelObjective(Part):
    """Maps what images (I items) and texts (T items) say of the classes to a `Loss`; a text has its image's labels.

    positives: (I, T) bool, which of them belong together.
    hidden_weight: of the loss of guessing hidden tokens, which training adds; 0 hides none.
    """

    collapse: ClassVar[Collapse | None] = "labels"
    hidden_weight: float = 0.0

    def set_epoch(self, epoch: int) -> None:
        """Nothing changes from epoch to epoch."""

    def forward(self, images: Labelled, texts: Labelled, positives: Tensor) -> Loss:
        for side, given in (("images", images), ("texts", texts)):
            _check(side, given)
        if positives.dtype != torch.bool or positives.shape != (len(images.labels), len(texts.labels)):
            raise InputError(
                f"Positives must be a bool mask of shape {(len(images.labels), len(texts.labels))} (images, texts), "
                f"got {kind(positives)}."
            )
        return self.loss(images, texts, positives)

    @abstractmethod
    def loss(self, images: Labelled, texts: Labelled, positives: Tensor) -> Loss:
        """The loss of checked inputs."""


def _check(side: str, given: Labelled) -> None:
    said = given.residual[:, 0] if given.logits is None else given.logits
    if said.shape != given.labels.shape:
        raise InputError(
            f"The {side} say something of {said.shape[1]} classes, and their labels have shape "
            f"{tuple(given.labels.shape)}; expected {tuple(said.shape)} (items, classes)."
        )
    if not bool(said.detach().isfinite().all()):
        raise NonFiniteError(f"What the {side} say of the classes holds NaN or infinity. Lower the learning rate.")


def pairs(positives: Tensor) -> tuple[Tensor, Tensor]:
    """The image and the text of every pair that belongs together."""
    image, text = positives.nonzero(as_tuple=True)
    return image, text
