"""InfoNCE: the cross-entropy of picking each match out of the batch."""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from polysem.objectives.base import Loss, Objective, anchors_and_matches, average, registry


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
