"""Contrastive objectives: the triplet hinge, InfoNCE over all negatives of a batch, AdOpt over the hardest."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Strict
from torch import Tensor
from torch.nn import functional as F

from polysem.errors import InputError
from polysem.objectives.base import Loss, Objective, anchors_and_matches, average, registry

Mining = Literal["all", "hardest", "semi_hard"]
# A pair that comes back from JSON is a list: not strictly a tuple, and welcome all the same.
Step = Annotated[tuple[NonNegativeInt, Mining], Strict(False)]


@registry.register("triplet")
class Triplet(Objective):
    """Triplet hinge loss of VSE++: a match must outscore its negatives by a margin. The usual choice of the family.

    For each positive pair (i, t), with negatives n of i (and the same from texts to images): [margin + s_in - s_it]+

    mining     "all" negatives; the "hardest" one; or the "semi_hard" ones, which lie inside the margin and strictly
               below the match. A list of [epoch, mining] steps is a schedule: [[0, "all"], [1, "hardest"]] is VSE∞'s
               warm-up.
    reduction  "sum" over the batch (VSE++, VSE∞) or "mean" over the terms of each direction (PVSE, DivE). They differ
               by a factor of about the batch size, which matters to gradient clipping.
    variant    "official": DivE's semi-hard, which counts negatives that outrank the match as a constant margin.
    """

    collapse = "hinge"

    def __init__(
        self,
        margin: NonNegativeFloat = 0.2,
        mining: Mining | list[Step] = "hardest",
        reduction: Literal["sum", "mean"] = "sum",
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__()
        self.margin, self.reduction, self.variant = margin, reduction, variant
        self.schedule = [(0, mining)] if isinstance(mining, str) else [(epoch, step) for epoch, step in mining]
        epochs = [epoch for epoch, _ in self.schedule]
        if not epochs or epochs[0] != 0 or epochs != sorted(set(epochs)):
            self.reject_knobs(f"a mining schedule needs ascending epochs from 0, got {mining!r}.")

    @property
    def mining(self) -> Mining:
        """What the schedule says for the present epoch."""
        return [mining for epoch, mining in self.schedule if epoch <= self.epoch][-1]

    def loss(self, scores: Tensor, positives: Tensor) -> Loss:
        i2t, active_i2t = self._one_way(scores, positives)
        t2i, active_t2i = self._one_way(scores.t(), positives.t())
        info = {"active": (active_i2t + active_t2i) / 2}
        return Loss(i2t + t2i, {"i2t": i2t, "t2i": t2i}, info)

    def _one_way(self, scores: Tensor, positives: Tensor) -> tuple[Tensor, float]:
        """The loss of rows as anchors, and the share of positive pairs with a negative inside the margin."""
        anchor, match = anchors_and_matches(positives)
        matched = scores[anchor, match]
        if self.mining == "hardest":
            hardest = scores.masked_fill(positives, float("-inf")).amax(1)[anchor]
            hinge = (self.margin + hardest - matched).clamp(min=0)
            terms, violated = hinge.numel(), hinge > 0
        else:
            hinge = (self.margin + scores[anchor] - matched[:, None]).clamp(min=0)
            counted = ~positives[anchor]
            if self.mining == "semi_hard":
                if self.variant == "official":
                    hinge = hinge.clamp(max=self.margin)
                else:
                    counted = counted & (scores[anchor] < matched[:, None])
                counted = counted & (hinge > 0)
            hinge = hinge.masked_fill(~counted, 0.0)
            terms, violated = int(counted.sum()), (hinge > 0).any(1)
        total = hinge.sum() / (max(1, terms) if self.reduction == "mean" else 1)
        return total, float(average(violated.float()))


@registry.register("infonce")
class InfoNCE(Objective):
    """Cross-entropy of picking the match out of all negatives of the batch: softer than the hardest triplet.

    For each positive pair (i, t): -log e^(s_it / tau) / (e^(s_it / tau) + sum over negatives n of i of e^(s_in / tau)),
    averaged over pairs and over the two directions. Other matches of i are left out of the sum. Stuck at ln(batch), it
    has collapsed.
    """

    collapse = "chance"

    def __init__(self, temperature: PositiveFloat = 0.05) -> None:
        super().__init__()
        self.temperature = temperature

    def loss(self, scores: Tensor, positives: Tensor) -> Loss:
        i2t, t2i = self._one_way(scores, positives), self._one_way(scores.t(), positives.t())
        return Loss((i2t + t2i) / 2, {"i2t": i2t, "t2i": t2i})

    def _one_way(self, scores: Tensor, positives: Tensor) -> Tensor:
        anchor, match = anchors_and_matches(positives)
        logits = scores / self.temperature
        against = logits.masked_fill(positives, float("-inf")).logsumexp(1)
        return average(F.softplus(against[anchor] - logits[anchor, match]))


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
