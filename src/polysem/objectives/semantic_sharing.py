from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from polysem.objectives.base import LabelledBatch, LabelObjective, Loss, matching_pairs, registry


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
        self.hidden_weight, self.eta, self.variant = lambda_, eta, variant

    def loss(self, images: LabelledBatch, texts: LabelledBatch, positives: Tensor) -> Loss:
        image, text = self._one_side(images), self._one_side(texts)
        total, parts = (image + text) / 2, {"image": image, "text": text}
        if self.eta:
            first, second = matching_pairs(positives)
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
