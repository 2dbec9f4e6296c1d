"""Objectives of items with labels: semantic sharing with its masked modelling, and DSCMR."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from polysem import masked_ops
from polysem.objectives.base import LabelledBatch, LabelObjective, Loss, registry

TEMPERATURE = 0.1
"""Of the choice among masked regions."""


@registry.register("semantic_sharing", stored_as="labels")
class SemanticSharingLoss(LabelObjective):
    """Label-wise semantic sharing: each side predicts the labels, and the tokens that were masked.

    Cross-entropy of all labels, summed over the classes, mean over the items of a side, mean of both sides.

    lambda   weight of predicting masked words and regions; 0 masks none
    eta      weight of consistency: mean over matching pairs of |p_image - p_text|^2 of their class probabilities. The
             paper holds that it harms; its figure has eta 0.1
    variant  "official": the released code's log(1 + exp(-sum of v_c over the true classes c)) of the class vector v,
             which has no term for the other classes; it predicts by a softmax of sigmoids, and its regions are never
             masked, only predicted. Its lambda is 0.0005.
    """

    def __init__(
        self,
        lambda_: NonNegativeFloat = 0.1,
        eta: NonNegativeFloat = 0.0,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__()
        self.masked_weight, self.eta, self.variant = lambda_, eta, variant

    def loss(self, images: LabelledBatch, texts: LabelledBatch, positives: Tensor) -> Loss:
        image, text = self._one_side(images), self._one_side(texts)
        total, parts = (image + text) / 2, {"image": image, "text": text}
        if self.eta:
            first, second = positives.nonzero(as_tuple=True)
            difference = self._probabilities(images)[first] - self._probabilities(texts)[second]
            parts["consistency"] = difference.square().sum(-1).mean()
            total = total + self.eta * parts["consistency"]
        return Loss(total, parts)

    def _one_side(self, side: LabelledBatch) -> Tensor:
        if self.variant == "official":
            return F.softplus(-(side.residual[:, 0] * side.labels).sum(-1)).mean()
        if side.logits is None:
            self.reject_knobs("the set predictors predict no labels, which only variant 'official' can do without.")
        return F.binary_cross_entropy_with_logits(side.logits, side.labels, reduction="none").sum(-1).mean()

    def _probabilities(self, side: LabelledBatch) -> Tensor:
        return side.residual[:, 0] if self.variant == "official" or side.logits is None else side.logits.sigmoid()


def word_terms(logits: Tensor, words: Tensor, variant: str = "paper") -> Tensor:
    """(M,): cross-entropy of each masked word. logits: (M, V); words: (M,), the true ones.

    variant "official": the released code takes the softmax of sigmoids, which cannot come near 0.
    """
    return F.cross_entropy(logits.sigmoid() if variant == "official" else logits, words, reduction="none")


def region_terms(predictions: Tensor, regions: Tensor) -> Tensor:
    """(M,): cross-entropy of picking each masked region's features among those of all masked ones, by cosine.

    predictions, regions: (M, F). The released code predicts a detector's class of the region; this needs no detector.
    """
    scores = masked_ops.normalise(predictions) @ masked_ops.normalise(regions).t() / TEMPERATURE
    return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device), reduction="none")


@registry.register("dscmr")
class DSCMR(LabelObjective):
    """DSCMR's objective (CVPR 2019), a baseline of label-wise retrieval: J1 + discrimination * J2 + invariance * J3.

    J1, both sides: mean over items of |P u - y|, the linear prediction against the labels.
    J2: mean over pairs of items of log(1 + e^c) - S c, c = cos / 2, among images, among texts and across; S is 1 for
    items that share a label.
    J3: mean over matching pairs of |u - v|, before normalisation.

    variant  "official": S counts the shared labels. The same with one label per item, as its authors' data has.
    """

    def __init__(
        self,
        discrimination: NonNegativeFloat = 1e-3,
        invariance: NonNegativeFloat = 0.1,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__()
        self.discrimination, self.invariance, self.variant = discrimination, invariance, variant

    def loss(self, images: LabelledBatch, texts: LabelledBatch, positives: Tensor) -> Loss:
        if images.logits is None or texts.logits is None:
            self.reject_knobs("the set predictors predict no labels. Take sets.name=dscmr or semantic_sharing.")
        label = _norms(images.logits - images.labels).mean() + _norms(texts.logits - texts.labels).mean()
        sides = ((images, images), (images, texts), (texts, texts))
        likelihood = torch.stack([self._pairwise_likelihood(*both) for both in sides]).sum()
        first, second = positives.nonzero(as_tuple=True)
        distance = _norms(images.residual[first, 0] - texts.residual[second, 0]).mean()
        total = label + self.discrimination * likelihood + self.invariance * distance
        return Loss(total, {"label": label, "discrimination": likelihood, "invariance": distance})

    def _pairwise_likelihood(self, one: LabelledBatch, other: LabelledBatch) -> Tensor:
        half = masked_ops.normalise(one.residual[:, 0]) @ masked_ops.normalise(other.residual[:, 0]).t() / 2
        shared = one.labels @ other.labels.t()
        if self.variant == "paper":
            shared = (shared > 0).to(half)
        return (F.softplus(half) - shared * half).mean()


def _norms(rows: Tensor) -> Tensor:
    """The length of each row. A little under the root: without, the gradient of a row of zeros is not a number."""
    return (rows.square().sum(-1) + 1e-12).sqrt()
