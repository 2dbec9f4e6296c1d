"""The triplet hinge loss of VSE++, with its ways to choose negatives."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, Strict
from torch import Tensor

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
