"""AdOpt of VSE+2AD: InfoNCE over the K hardest negatives."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from polysem.errors import InputError
from polysem.objectives.base import Loss, Objective, anchors_and_matches, average, registry


@registry.register("adopt")
class AdOpt(Objective):
    """VSE+2AD's objective: contrast each match with its K hardest negatives, K falling as the model matures.

    variant, from which K and the loss follow:
      annealed  many negatives early, 4 to 5 late, as the paper's figure shows. Maturity is how often a match
                outranks a negative, m = 2 * AUC - 1; K = k_late + (1 - m)(B - 1 - k_late). Loss as `infonce` over
                those K.
      paper     K = floor(B cos((align + uniform) pi / 4)), Eq. 6 as printed; the denominator holds only negatives
                and the two directions are summed. It keeps about three quarters of the negatives for a trained model.
      official  the released code: another formula for K, which falls to 1 early; a margin of 0.2 on negatives; and
                a match, or a sibling of it, can be drawn as a negative where most similarities are below 0.

    k: "adaptive" as above; for the ablation a "random" K in each batch, or a number for a constant K.
    """

    collapse = "chance"

    def __init__(
        self,
        variant: Literal["annealed", "paper", "official"] = "annealed",
        k: Literal["adaptive", "random"] | PositiveInt = "adaptive",
        temperature: PositiveFloat = 0.05,
        margin: NonNegativeFloat | None = None,
        scale: PositiveFloat = 1.25,
        k_late: PositiveInt = 4,
    ) -> None:
        super().__init__()
        self.variant, self.k, self.temperature, self.scale, self.k_late = variant, k, temperature, scale, k_late
        self.margin = (0.2 if variant == "official" else 0.0) if margin is None else margin

    def loss(self, scores: Tensor, positives: Tensor) -> Loss:
        i2t, k_i2t = self._one_way(scores, positives)
        t2i, k_t2i = self._one_way(scores.t(), positives.t())
        total = i2t + t2i if self.variant == "paper" else (i2t + t2i) / 2
        info = {"k": (k_i2t + k_t2i) / 2, "k_i2t": float(k_i2t), "k_t2i": float(k_t2i)}
        return Loss(total, {"i2t": i2t, "t2i": t2i}, info)

    def _one_way(self, scores: Tensor, positives: Tensor) -> tuple[Tensor, int]:
        anchor, match = anchors_and_matches(positives)
        count = self.choose_k(scores.detach(), positives)
        if self.variant == "official":
            # Ranked with 0 in place of a match's score: a match can be drawn, with its real score, as a negative.
            drawn = scores.masked_fill(positives, 0.0).topk(count, dim=1).indices
            hardest = scores.gather(1, drawn)
        else:
            hardest = scores.masked_fill(positives, float("-inf")).topk(count, dim=1).values
        against = ((hardest + self.margin) / self.temperature).logsumexp(1)[anchor]
        gap = against - scores[anchor, match] / self.temperature
        return average(gap if self.variant == "paper" else F.softplus(gap)), count

    def choose_k(self, scores: Tensor, positives: Tensor) -> int:
        """K for this batch: between 1 and the most negatives that any anchor has. B is the number of candidates."""
        most = max(1, int((~positives).sum(1).max()))
        if self.k == "adaptive":
            chosen = self._adapt_k(scores, positives, most)
        elif self.k == "random":
            chosen = int(torch.randint(1, most + 1, ()))
        else:
            chosen = int(self.k)
        return max(1, min(chosen, most))

    def _adapt_k(self, scores: Tensor, positives: Tensor, most: int) -> int:
        if self.variant == "annealed":
            anchor, match = anchors_and_matches(positives)
            beaten = (scores[anchor] < scores[anchor, match][:, None]) & ~positives[anchor]
            auc = beaten.sum() / (~positives[anchor]).sum().clamp(min=1)
            immature = 1 - (2 * float(auc) - 1)
            return round(self.k_late + min(1.0, immature) * (most - self.k_late))
        scores = scores.double()
        align = scores[positives].mean()
        if self.variant == "paper":
            uniform = scores.flatten().logsumexp(0) - math.log(scores.numel())
            return math.floor(scores.shape[1] * math.cos(float(align + uniform) * math.pi / 4))
        uniform = (-scores.masked_fill(positives, 0.0)).exp().mean()
        if not bool(uniform.isfinite()):
            raise InputError(f"adopt expects similarities near [-1, 1]; the lowest here is {float(scores.min()):.3g}.")
        # A negative sum has no real power: the released code dies there. More negatives is what it means to ask for.
        maturity = max(0.0, float(align + uniform)) ** self.scale
        return int(math.cos(maturity) * scores.shape[1]) + 1
