from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional as F

from polysem import masked_ops
from polysem.objectives.base import LabelledBatch, LabelObjective, Loss, matching_pairs, registry


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
        first, second = matching_pairs(positives)
        distance = _norms(images.residual[first, 0] - texts.residual[second, 0]).mean()
        total = label + self.discrimination * likelihood + self.invariance * distance
        return Loss(total, {"label": label, "discrimination": likelihood, "invariance": distance})

    def _pairwise_likelihood(self, one: LabelledBatch, other: LabelledBatch) -> Tensor:
        half = masked_ops.unit(one.residual[:, 0]) @ masked_ops.unit(other.residual[:, 0]).t() / 2
        shared = one.labels @ other.labels.t()
        if self.variant == "paper":
            shared = (shared > 0).to(half)
        return (F.softplus(half) - shared * half).mean()


def _norms(rows: Tensor) -> Tensor:
    """The length of each row. A little under the root: without, the gradient of a row of zeros is not a number."""
    return (rows.square().sum(-1) + 1e-12).sqrt()
