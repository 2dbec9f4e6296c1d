"""Base classes of objectives: scores of all pairs, or predicted labels, and the pairs that match, to a loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from polysem._deprecated import renamed_attribute
from polysem.errors import InputError, NonFiniteError, kind
from polysem.features import require_float
from polysem.registry import Part, Registry

registry: Registry[Part] = Registry("objective")

Collapse = Literal["hinge", "chance", "labels"]
"""Where the loss of a collapsed model stands still: at 2 * batch * margin, the hinge of scores that are all equal; at
ln(batch), the cross-entropy of chance; or at the loss of items that are all predicted to have the same labels."""


@dataclass(frozen=True, eq=False)
class Loss:
    """total: the scalar to minimise. parts: its summands by name. info: figures to log, without gradient."""

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    info: Mapping[str, float] = field(default_factory=dict)


class Objective(Part):
    """Maps scores (I, T) and positives (I, T) bool to a `Loss`, both ways: images to texts and texts to images.

    Positives are a mask: an image may have any number of texts and a text any number of images. What matches an anchor
    is never its negative; an anchor without a match serves only as a negative of others.
    """

    collapse: ClassVar[Collapse | None] = None
    """How this objective shows a collapsed model, for the diagnosis of a training run; None: in no known way."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch (from 0), for objectives with a schedule."""
        if not isinstance(epoch, int) or epoch < 0:
            raise InputError(f"Epochs are whole numbers that count from 0, got {epoch!r}.")
        self.epoch = epoch

    def forward(self, scores: Tensor, positives: Tensor) -> Loss:
        require_float(scores, "Scores", "(images, texts)")
        _require_positives(positives, tuple(scores.shape))
        if not bool(positives.any()):
            raise InputError("No pair of this batch is a positive; check how the mask was made.")
        if not bool(scores.detach().isfinite().all()):
            bad = (~scores.detach().isfinite()).nonzero()
            raise NonFiniteError(
                f"{len(bad)} of {scores.numel()} scores are NaN or infinite, first at (image {bad[0, 0]}, text "
                f"{bad[0, 1]}). Check the features, or lower the learning rate if this happens while training."
            )
        return self.loss(scores, positives)

    @abstractmethod
    def loss(self, scores: Tensor, positives: Tensor) -> Loss:
        """The loss of checked inputs."""


class Regulariser(Part):
    """Maps two collections of sets, images (I, K, D) and texts (T, L, D), to a `Loss` to add with a small weight."""

    needs_sets: ClassVar[bool] = False
    """Whether it has nothing to do where every item is a single vector."""

    def forward(self, images: Tensor, texts: Tensor) -> Loss:
        for side, x in (("images", images), ("texts", texts)):
            require_float(x, f"{type(self).__name__}: {side}", "(items, set size, dim)")
            if x.numel() == 0:
                raise InputError(f"{type(self).__name__}: {side} are empty, {kind(x)}. Give at least one set.")
            if not bool(x.detach().isfinite().all()):
                raise NonFiniteError(f"{type(self).__name__}: {side} hold NaN or infinity. Check the learning rate.")
        if images.shape[2] != texts.shape[2]:
            raise InputError(f"Images have width {images.shape[2]} and texts {texts.shape[2]}; they need a common one.")
        return self.loss(images, texts)

    @abstractmethod
    def loss(self, images: Tensor, texts: Tensor) -> Loss:
        """The loss of checked inputs."""


def _require_positives(positives: object, shape: tuple[int, ...]) -> None:
    if not isinstance(positives, Tensor) or positives.dtype != torch.bool or positives.shape != shape:
        wanted = f"a bool mask of shape {shape} (images, texts), such as torch.eye(n, dtype=torch.bool)"
        raise InputError(f"Positives must be {wanted}; got {kind(positives)}.")


def anchors_and_matches(positives: Tensor) -> tuple[Tensor, Tensor]:
    """(I, T) -> row and column of every positive pair whose row, the anchor, also has a negative."""
    anchor, match = (positives & ~positives.all(1, keepdim=True)).nonzero(as_tuple=True)
    return anchor, match


def average(terms: Tensor) -> Tensor:
    """The mean, and 0 where there is nothing to average."""
    return terms.sum() / max(1, terms.numel())


@dataclass(frozen=True, eq=False)
class LabelledBatch:
    """One side of a batch. vectors, residual: (B, K, D), of its sets. logits, labels: (B, C), labels 0 or 1."""

    vectors: Tensor
    residual: Tensor
    logits: Tensor | None
    labels: Tensor


class LabelObjective(Part):
    """Maps predicted and true labels of images (I) and texts (T) to a `Loss`; a text has its image's labels.

    positives: (I, T) bool, which of them belong together.
    masked_weight: of the masked-modelling loss, which training adds; 0 masks no tokens.
    """

    collapse: ClassVar[Collapse | None] = "labels"
    masked_weight: float = 0.0
    hidden_weight = renamed_attribute("hidden_weight", "masked_weight")

    def set_epoch(self, epoch: int) -> None:
        """Label objectives have no schedule."""

    def forward(self, images: LabelledBatch, texts: LabelledBatch, positives: Tensor) -> Loss:
        for side, batch in (("images", images), ("texts", texts)):
            predicted = batch.residual[:, 0] if batch.logits is None else batch.logits
            if predicted.shape != batch.labels.shape:
                given, wanted = tuple(batch.labels.shape), f"{tuple(predicted.shape)} (items, classes)"
                raise InputError(f"The {side} predict {predicted.shape[1]} classes; labels are {given}, not {wanted}.")
            if not bool(predicted.detach().isfinite().all()):
                raise NonFiniteError(f"Classes predicted of the {side} hold NaN or infinity. Lower the learning rate.")
        _require_positives(positives, (len(images.labels), len(texts.labels)))
        return self.loss(images, texts, positives)

    @abstractmethod
    def loss(self, images: LabelledBatch, texts: LabelledBatch, positives: Tensor) -> Loss:
        """The loss of checked inputs."""
