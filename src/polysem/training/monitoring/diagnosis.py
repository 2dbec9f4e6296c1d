"""A training run that goes wrong in a known way is named while it runs, with what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from polysem import masked_ops
from polysem.objectives import LabelledBatch, LabelObjective, Objective
from polysem.objectives.base import Collapse

GRACE = 50
"""Steps that are not judged: every run starts at chance, and a set predictor may start with alike elements."""
PATIENCE = 100
"""Steps that something must last to be named: a healthy run crosses each of these states, none stays for so long."""
NEAR = 0.03
"""Mean distance of the loss from its collapsed value, as a share of that value (of at least 1 nat for InfoNCE)."""
FLAT = 0.01
"""The same distance, first half of the window against the second: an InfoNCE that moves more than this is alive."""
ABOVE = 0.1
"""The same distance for a hinge that comes down on its constant: the last tenth takes long, and leads nowhere."""
GROWING = 1.25
"""Factor from the first half of a window to the second above which a spread or variance is on its way out."""
SPREAD = 0.01
"""Standard deviation of the scores under which a hinge counts as collapsed; healthy runs keep 0.02 and more, even when
the hardest negative holds them at the constant for a hundred steps."""
EQUAL = 1e-6
"""Standard deviation of the scores under which they are the same number, whatever the loss makes of it."""
VARIANCE = 1e-3
"""Circular variance (ln: -6.9) under which a set is one vector K times. PIE-Net ends at e^-7.35, slots at e^-2.1."""
STARVED = 0.1
"""Share of its even share of the gradient, 1 / K, under which an element is not being trained."""
EXPLODED = 100.0
"""Factor over its own usual size at which a norm has exploded. Residuals of sound runs grow up to tenfold."""
EARLY, USUAL, SPIKES, OF_LAST = 5, 100, 3, 5
"""A gradient's usual size is the larger of the medians of the first EARLY and of the last USUAL steps; SPIKES of
OF_LAST steps above it are an explosion, one is an unlucky batch."""
REARM = 50
"""Steps that a condition must have been gone before it can be named again."""

ALL_NEGATIVES_FIRST = '--set objective.mining=\'[[0,"all"],[1,"hardest"]]\''
"""Against a hinge that collapses on its hardest negative."""

# Scores this far apart are as good as equal, and float32 still tells them apart.
_NEARLY_EQUAL = 1e-4


@dataclass(frozen=True)
class TrainingFinding:
    """name: what it is. says: the evidence. advice: what to do, with keys of the recipe. step: when it was seen."""

    name: str
    says: str
    advice: str
    step: int


@dataclass(frozen=True)
class StepFacts:
    """What is known after an optimiser step. Leave out steps that a loss scaler skips: it expects infinities.

    Args:
        loss: the objective's own total, without regularisers.
        collapsed_loss: `collapsed_loss` of the same batch, or `collapsed_label_loss`.
        collapse: how the objective shows a collapsed model, as its class declares.
        variance: `circular_variance` by side ("image", "text"), where items are sets.
        gradient_shares: those of `gradient_shares` by side, where items are sets.
        norms: mean length of the residuals by side, before normalisation.
        score_spread: standard deviation of the scores.
        lr: the highest learning rate, to name a lower one.
        warming: the learning rate is still rising towards it: standing still means nothing.
    """

    loss: float
    collapsed_loss: float
    collapse: Collapse | None
    score_spread: float
    step: int = 0
    grad_norm: float = 0.0
    variance: dict[str, float] = field(default_factory=dict)
    gradient_shares: dict[str, tuple[float, ...]] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    lr: float | None = None
    warming: bool = False


class TrainingMonitor:
    """Give it every step's facts; it answers with what has newly gone wrong, each thing once until it has passed.

    `state` and `restore` carry its memory over an interruption: a resumed run finds what an uninterrupted one would.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._first: dict[str, list[float]] = {}
        self._recent: dict[str, list[float]] = {}
        self._gone: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return deepcopy({"seen": self._seen, "gone": self._gone, "first": self._first, "recent": self._recent})

    def restore(self, state: dict[str, Any]) -> None:
        copy = deepcopy(state)
        self._seen, self._gone, self._first, self._recent = (copy[name] for name in ("seen", "gone", "first", "recent"))

    def observe(self, facts: StepFacts) -> list[TrainingFinding]:
        self._seen += 1
        findings = list(self._find_explosions(facts))
        if self._seen <= GRACE or facts.warming:
            return findings
        findings += self._find_score_collapse(facts)
        for side in ("image", "text"):
            if side in facts.variance:
                findings += self._find_set_collapse(facts, side, facts.variance[side])
            if side in facts.gradient_shares:
                findings += self._find_untrained(facts, side, facts.gradient_shares[side])
        return findings

    def _find_explosions(self, facts: StepFacts) -> Iterator[TrainingFinding]:
        lower = f"Lower the learning rate: {_lower_lr(facts)}. Clip the gradient: --set optimiser.clip=1.0."
        values = {"loss": facts.loss, "gradient norm": facts.grad_norm, "spread of the scores": facts.score_spread}
        values |= {f"length of {side} residuals": norm for side, norm in facts.norms.items()}
        broken = ", ".join(f"the {name} is {value}" for name, value in values.items() if not math.isfinite(value))
        if self._begins("not finite", bool(broken)):
            advice = f"{lower} If it comes back, look for broken features: `polysem data check`."
            yield TrainingFinding("exploding norms", f"T{broken[1:]}.", advice, facts.step)
        # 0 while it is not known. The first steps count for ever: later gradients may be all but zero, and well so.
        first = self._first.get("grad", [])
        usual = max(median(first), median(self._recent["grad"])) if len(first) == EARLY else 0.0
        if math.isfinite(facts.grad_norm):
            spike = usual > 0 and facts.grad_norm > EXPLODED * usual
            self._push("grad", facts.grad_norm, USUAL, first=EARLY)
            spikes = sum(self._push("spikes", float(spike), OF_LAST))
            if self._begins("gradient", spikes >= SPIKES):
                says = (
                    f"The gradient norm is {facts.grad_norm:.3g}, usually {usual:.3g}: more than {EXPLODED:.0f} times "
                    f"that in {spikes:.0f} of the last {OF_LAST} steps."
                )
                yield TrainingFinding("exploding norms", says, lower, facts.step)
        for side, norm in facts.norms.items():
            if not math.isfinite(norm):
                continue
            self._push(f"norm {side}", norm, OF_LAST, first=1)
            start, now = self._first[f"norm {side}"][0], min(self._recent[f"norm {side}"])
            # A residual that starts at nothing has no size to compare with: then 1 is its start.
            full = len(self._recent[f"norm {side}"]) == OF_LAST
            if self._begins(f"norm {side}", full and now > EXPLODED * max(start, 1.0)):
                says = f"The {side} residuals are {norm:.3g} long before normalisation; they began at {start:.3g}."
                weights = f"{lower} Normalised vectors hide it, but weights of this size hardly turn any more."
                yield TrainingFinding("exploding norms", says, weights, facts.step)

    def _find_score_collapse(self, facts: StepFacts) -> Iterator[TrainingFinding]:
        if not all(map(math.isfinite, (facts.loss, facts.collapsed_loss, facts.score_spread))):
            return
        log = facts.collapse == "chance"
        scale = max(abs(facts.collapsed_loss), 1.0 if log else 1e-12)
        off = self._push("off", (facts.loss - facts.collapsed_loss) / scale, PATIENCE)
        spread = self._push("spread", facts.score_spread, PATIENCE)
        full, half = len(off) == PATIENCE, PATIENCE // 2
        if log:  # for InfoNCE the constant is chance itself: to stay there is enough
            stuck = full and abs(fmean(off)) < NEAR and abs(fmean(off[half:]) - fmean(off[:half])) < FLAT
        else:  # a hinge on the hardest negative passes its constant on the way down, slowly at times, its scores apart
            stuck = full and -NEAR < fmean(off) < ABOVE and fmean(spread) < SPREAD
        if self._begins("scores", (full and max(spread) < EQUAL) or (stuck and not _grows(spread))):
            yield _name_collapse(facts, fmean(spread))

    def _find_set_collapse(self, facts: StepFacts, side: str, variance: float) -> Iterator[TrainingFinding]:
        if not math.isfinite(variance):
            return
        window = self._push(f"variance {side}", variance, PATIENCE)
        alike = len(window) == PATIENCE and fmean(window) < VARIANCE and not _grows(window)
        if self._begins(f"variance {side}", alike):
            says = (
                f"The elements of each {side} set are alike: circular variance {fmean(window):.2g} over the last "
                f"{PATIENCE} steps (sets that hold several meanings have 0.1; below {VARIANCE:g} they are one vector)."
            )
            yield TrainingFinding("set collapse", says, advise_against_set_collapse(side), facts.step)

    def _find_untrained(self, facts: StepFacts, side: str, shares: tuple[float, ...]) -> Iterator[TrainingFinding]:
        # No gradient at all says nothing about who would get it.
        if not all(map(math.isfinite, shares)) or sum(shares) == 0:
            return
        k, starved, new = len(shares), dict[int, float](), False
        for element, share in enumerate(shares):
            window = self._push(f"supervision {side} {element}", share, PATIENCE)
            mean = fmean(window)
            low = len(window) == PATIENCE and mean < STARVED / k
            if low:
                starved[element + 1] = mean
            new |= self._begins(f"supervision {side} {element}", low)
        if new:
            which = ", ".join(f"element {element} ({share:.1%})" for element, share in starved.items())
            says = (
                f"Of the {k} elements of {side} sets, {len(starved)} got almost no share of the gradient over the last "
                f"{PATIENCE} steps: {which}; an even share is {1 / k:.0%}. An element that never wins gets no gradient."
            )
            advice = advise_against_starvation(side, k - len(starved))
            yield TrainingFinding("untrained elements", says, advice, facts.step)

    def _push(self, key: str, value: float, size: int, first: int = 0) -> list[float]:
        """Remember a value among the last `size`, and for ever if it is among the `first`. Returns the last."""
        if first and len(self._first.setdefault(key, [])) < first:
            self._first[key].append(value)
        recent = self._recent.setdefault(key, [])
        recent.append(value)
        del recent[:-size]
        return recent

    def _begins(self, key: str, holds: bool) -> bool:
        """True when a condition begins to hold, counting short gaps as holding."""
        if holds:
            new = key not in self._gone
            self._gone[key] = 0
            return new
        if key in self._gone:
            self._gone[key] += 1
            if self._gone[key] >= REARM:
                del self._gone[key]
        return False


def advise_against_set_collapse(side: str) -> str:
    """What to do about sets of one side whose elements are alike."""
    return (
        "Let every element take part, and push them apart: --set similarity.name=smooth_chamfer "
        f"--set {side}.sets.name=slots --set regularisers='[{{name: diversity, weight: 0.1, on: residual}}]'. "
        f"Elements that begin at a global vector need time, or a larger start: --set {side}.sets.gamma=1. "
        "If one meaning is enough, a single vector costs less."
    )


def advise_against_starvation(side: str, elements: int) -> str:
    """What to do about sets of one side of which only so many elements are trained."""
    return (
        "Use a similarity in which every element has a part: --set similarity.name=smooth_chamfer (mil gives all to "
        f"one pair). Or ask for fewer: --set {side}.sets.k={elements}."
    )


def _grows(window: list[float]) -> bool:
    half = len(window) // 2
    return fmean(window[half:]) > GROWING * fmean(window[:half])


def _name_collapse(facts: StepFacts, spread: float) -> TrainingFinding:
    lower = f"lower the learning rate, {_lower_lr(facts)}, and let it rise slowly, --set schedule.warmup_steps=200"
    pairs = "If it comes back, see whether the captions belong to their pictures: `polysem data show`."
    alike, why = "scores that are all the same", ""
    name, advice = "score collapse", f"Start again: {lower}. {pairs}"
    if facts.collapse == "hinge":
        name, why = "hinge collapse", " Everything is embedded at one point, where the hardest negative has no way out."
        smaller = "or take a smaller batch, whose hardest is less hard: --set training.batch=64"
        advice = f"Begin with all negatives, {ALL_NEGATIVES_FIRST} ({smaller}); {lower}. {pairs}"
    elif facts.collapse == "chance":
        name, why = "InfoNCE collapse", " The match is picked no better than by chance."
        advice = f"Start again: {lower}; a softer objective helps too, --set objective.temperature=0.1. {pairs}"
    elif facts.collapse == "labels":
        name, alike = "label collapse", "items that are all said to have the same labels"
        advice = (
            f"Start again: {lower}. A loss without negatives leads there too: --set objective.variant=paper. If it "
            "comes back, see whether the labels belong to their pictures: `polysem data show`."
        )
    says = (
        f"The loss has stood at {facts.loss:.4g} for {PATIENCE} steps; {alike} give {facts.collapsed_loss:.4g}. "
        f"The scores differ by {spread:.2g} (standard deviation).{why}"
    )
    return TrainingFinding(name, says, advice, facts.step)


def _lower_lr(facts: StepFacts) -> str:
    return f"--set optimiser.lr={'… (a tenth of the present one)' if facts.lr is None else f'{facts.lr / 10:.3g}'}"


@torch.no_grad()
def collapsed_loss(objective: Objective, scores: Tensor, positives: Tensor) -> float:
    """The objective's value if every score of this batch were the same: the loss of a collapsed model.

    2 * B * margin for the summed hinge on the hardest negative, ln B for InfoNCE. Nothing about the objective or the
    random state is changed. An objective that draws (AdOpt with a random K) draws here what its next call will draw:
    call this just before the loss to compare the two like with like.
    """
    equal = torch.full_like(scores, float(scores.float().mean()), dtype=torch.float32)
    devices = [scores.device] if scores.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.autocast(scores.device.type, enabled=False):
        total = float(objective.loss(equal, positives).total)
        if total == 0:
            # Semi-hard mining counts only negatives strictly below the match: of equal scores, none. Take the limit.
            generator = torch.Generator().manual_seed(0)
            ripple = torch.rand(scores.shape, generator=generator).to(equal.device).masked_fill(positives, 0.5)
            total = float(objective.loss(equal + _NEARLY_EQUAL * ripple, positives).total)
    return total


@torch.no_grad()
def collapsed_label_loss(
    objective: LabelObjective, images: LabelledBatch, texts: LabelledBatch, positives: Tensor
) -> float:
    """A label objective's value if every item of a side predicted the same of the classes: their average."""

    def average(side: LabelledBatch) -> LabelledBatch:
        vectors, logits = masked_ops.normalise(_mean(side.vectors)), None if side.logits is None else _mean(side.logits)
        return replace(side, vectors=vectors, residual=_mean(side.residual), logits=logits)

    return float(objective.loss(average(images), average(texts), positives).total)


@torch.no_grad()
def circular_variance(vectors: Tensor) -> float:
    """(B, K, D) -> 1 - |mean of the unit elements|, averaged over the batch: 0 where all elements of a set agree."""
    return float((1 - masked_ops.normalise(vectors.float()).mean(1).norm(dim=-1)).clamp(min=0).mean())


@torch.no_grad()
def gradient_shares(gradient: Tensor) -> tuple[float, ...]:
    """(B, K, D) gradient of the loss by the elements -> each element's share of its length. All 0 if there is none."""
    lengths = gradient.float().norm(dim=-1).sum(0)
    total = lengths.sum()
    return tuple((lengths / total).tolist()) if bool(total > 0) else (0.0,) * len(lengths)


def _mean(rows: Tensor) -> Tensor:
    return rows.mean(0, keepdim=True).expand_as(rows)
