"""What the figures mean, in plain words. The limits stand here, with where they come from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from polysem.training.diagnosis import STARVED

if TYPE_CHECKING:
    from polysem.inspection.diagnose.report import Diagnosis

Level = Literal["good", "watch", "bad"]

COLLAPSED = 0.01
"""Circular variance (ln: -4.6) under which the elements of a set all but agree: their mean cosine is above 0.97 for
four elements. DivE's poster has ln variances of -7.35 (PIE-Net) and -5.27 (match probability) for sets that collapsed,
and of -2.1 to -2.3 for sets that did not."""
CLOSE = 0.02
"""Circular variance (ln: -3.9) under which to watch it."""
AS_ONE = 0.99
"""Share of first answers that stay with one vector for each set, from which on the sets act as one vector. Measured on
emoji scenes: match probability 0.998, smooth-Chamfer 0.94 to 0.97, Chamfer 0.9, MIL 0.64."""
IDLE = 0.5
"""Share of its elements that a set must use at least, by exp(entropy of the supervision)."""
ONE_POINT = 0.95
"""Mean cosine of different items from which on everything lies at one point."""
HUBS, MANY_HUBS = 2.0, 5.0
"""Skewness of how often answers are returned."""
BELIEVABLE, USELESS = 0.7, 0.6
"""AUROC of the first score."""
APART = 0.99
"""Share of pairs of an image and a text that a single direction tells apart."""
BY_CHANCE = 3.0
"""Times chance that R@10 must be."""

MUTE = 0.5
"""Share of the labels that are never predicted, from which on to watch it."""

_PAIRS_AT_ONE_POINT = (
    "Train again with a lower learning rate and with all negatives first: "
    '--set objective.mining=\'[[0,"all"],[1,"hardest"]]\'.'
)
_LABELS_AT_ONE_POINT = "Train longer, or again with a lower learning rate: --set optimiser.lr=…"
_NAMES = {"image": "image sets", "text": "text sets"}
_WAYS = {"i2t": "image → text", "t2i": "text → image"}


@dataclass(frozen=True)
class Verdict:
    """about: what was judged. says: the finding with its figures. advice: what to do, empty if nothing."""

    about: str
    level: Level
    says: str
    advice: str = ""


def judge(found: Diagnosis) -> list[Verdict]:
    """All verdicts, the worst first."""
    every = [
        *_retrieval(found),
        *_labels(found),
        *_collapse(found),
        *_starvation(found),
        *_pointing(found),
        *_hubs(found),
        *_belief(found),
        *_gap(found),
    ]
    return sorted(every, key=lambda verdict: ("bad", "watch", "good").index(verdict.level))


def headline(verdicts: list[Verdict]) -> str:
    """In a line: what is wrong, or that nothing is."""
    bad = list(dict.fromkeys(verdict.about for verdict in verdicts if verdict.level == "bad"))
    if bad:
        return f"Unhealthy: {', '.join(bad)}."
    watch = list(dict.fromkeys(verdict.about for verdict in verdicts if verdict.level == "watch"))
    return f"Healthy; to watch: {', '.join(watch)}." if watch else "Healthy."


def _percent(value: float) -> str:
    return f"{value:.0f}%" if value >= 10 else f"{value:.2g}%"


def _retrieval(found: Diagnosis) -> Iterator[Verdict]:
    figures = found.retrieval
    items = len(found.gallery.items)
    chance = 100 * min(1.0, 10 / items)
    r10 = figures["t2i"]["r10"]
    says = (
        f"RSUM {figures['rsum']:.1f}. A caption finds its image first in {figures['t2i']['r1']:.1f}% of cases and "
        f"among the first ten in {r10:.1f}%; by lot that would be {_percent(100 / items)} and {_percent(chance)}."
    )
    cosine = max(value for value in (found.space.cosine_image, found.space.cosine_text) if math.isfinite(value))
    if cosine > ONE_POINT:
        yield Verdict(
            "everything at one point",
            "bad",
            f"{says} Two different items have a mean cosine of {cosine:.2f}: the space is not used.",
            _LABELS_AT_ONE_POINT if found.gallery.model.labels else _PAIRS_AT_ONE_POINT,
        )
    elif r10 < BY_CHANCE * chance and chance * BY_CHANCE < 100:
        advice = "Hardly better than chance: see whether the captions belong to their pictures."
        if found.gallery.model.labels:  # it may still find what has the same labels
            advice = "Hardly better than chance. Labels are what it learned: measure it with --protocol labels."
        yield Verdict("retrieval", "watch" if found.gallery.model.labels else "bad", says, advice)
    else:
        yield Verdict("retrieval", "good", says)


def _labels(found: Diagnosis) -> Iterator[Verdict]:
    each = found.predicted
    if each is None:
        return
    measured = " and ".join(f"{each.micro_f1[side]:.1f} for {side}s" for side in each.micro_f1)
    says = f"Micro-F1 of predicted labels is {measured}. Of the {each.present:,} labels of these items "
    says += " and ".join(f"{len(names):,} are never predicted of any {side}" for side, names in each.silent.items())
    says += f", and {len(each.unknown):,} are unknown to the model." if each.unknown else "."
    silent = max(len(names) for names in each.silent.values())
    if not all(each.micro_f1.values()):
        advice = "No right label reaches a probability of 0.5. Train longer, or with a lower learning rate."
        yield Verdict("labels", "bad", says, advice)
    elif silent > MUTE * each.present:
        advice = "Rare labels stay below a probability of 0.5. Train longer; ranking by labels needs no such threshold."
        yield Verdict("labels", "watch", says, advice)
    else:
        yield Verdict("labels", "good", says)


def _collapse(found: Diagnosis) -> Iterator[Verdict]:
    advice = (
        "Let every element take part, and push them apart: --set similarity.name=smooth_chamfer --set "
        "regularisers='[{name: diversity, weight: 0.1, on: residual}]'. If one meaning is enough, one vector costs "
        "less."
    )
    for side, each in found.spreads.items():
        figure = f"circular variance {each.variance:.2g}, ln {each.log_variance:.2f}"
        within = f"{each.within:.1%} of the variance is within sets"
        if each.variance < COLLAPSED:
            says = f"The elements of {_NAMES[side]} all but agree: {figure}; {within}."
            yield Verdict("set collapse", "bad", says, advice)
        elif each.variance < CLOSE:
            says = f"The elements of {_NAMES[side]} lie close together: {figure}; {within}."
            yield Verdict("set collapse", "watch", says, advice)
        else:
            says = f"The elements of {_NAMES[side]} lie apart: {figure}; {within}."
            yield Verdict("diverse sets", "good", says)
    if found.as_one is not None:
        kept = min(found.as_one.i2t, found.as_one.t2i)
        says = (
            f"With one vector in place of each set, the mean of its elements, {found.as_one.t2i:.1%} of the first "
            f"{found.as_one.first} images and {found.as_one.i2t:.1%} of the first captions stay the same."
        )
        if kept >= AS_ONE:
            yield Verdict(
                "sets act as one vector",
                "bad",
                f"{says} However far apart the elements lie, the score makes nothing of it: it counts all pairs alike.",
                "Take a similarity that lets the closest elements count more: --set similarity.name=smooth_chamfer.",
            )
        else:
            yield Verdict("sets at work", "good", f"{says} The rest is what the sets bring.")


def _starvation(found: Diagnosis) -> Iterator[Verdict]:
    for side, each in found.usages.items():
        k = len(each.supervision)
        starved = [number for number, share in enumerate(each.supervision) if share < STARVED / k]
        told = ", ".join(f"element {number + 1} {share:.1%}" for number, share in enumerate(each.supervision))
        says = f"Of the gradient that matching {_NAMES[side]} receive, {told}; an even share is {1 / k:.0%}."
        if starved or each.effective < IDLE * k:
            names = f"{len(starved)} of {k} get next to nothing. " if starved else ""
            same = max((each.constancy[number] for number in starved), default=0.0)
            fixed = f" The idle ones say the same of everything (up to {same:.0%} of them)." if same > 0.3 else ""
            yield Verdict(
                "starved elements",
                "bad",
                f"{names}{each.effective:.1f} of {k} elements of {_NAMES[side]} are in use. {says}{fixed}",
                "Use a similarity in which every element has a part: --set similarity.name=smooth_chamfer (mil gives "
                f"all to one pair). Or ask for fewer: --set {side}.sets.k={max(1, round(each.effective))}.",
            )
        else:
            yield Verdict("elements in use", "good", f"{each.effective:.1f} of {k} elements are in use. {says}")


def _pointing(found: Diagnosis) -> Iterator[Verdict]:
    game = found.pointing
    if isinstance(game, str):
        return
    level = max(game.chance, game.habit)
    what = "chance" if game.chance >= game.habit else "a fixed way of looking"
    says = (
        f"In {game.accuracy.value:.1%} of {game.accuracy.trials:,} trials ({game.accuracy.low:.1%} to "
        f"{game.accuracy.high:.1%}) an element looks at a thing that its nearest caption names. "
        f"{what.capitalize()} would score {level:.1%}; the difference is {100 * game.above.value:.1f} points "
        f"({100 * game.above.low:.1f} to {100 * game.above.high:.1f})."
    )
    if game.above.low > 0:
        yield Verdict("attention on what is named", "good", says)
    else:
        yield Verdict(
            "attention misses what is named",
            "watch",
            says,
            "Do not read attention maps of this model as explanations.",
        )


def _hubs(found: Diagnosis) -> Iterator[Verdict]:
    for way, each in found.hubness.items():
        says = (
            f"{_WAYS[way]}: the most frequent answer is among the first {each.k} of {each.largest_hub:.1f}% of "
            f"queries, and {each.never_returned:.1f}% of answers never are; skewness {each.skewness:.1f}."
        )
        if each.skewness > HUBS:
            level: Level = "bad" if each.skewness > MANY_HUBS else "watch"
            yield Verdict(
                "hubs", level, says, "Re-score when searching: `polysem eval --rescore csls` shows the effect."
            )
        else:
            yield Verdict("no hubs", "good", says)


def _belief(found: Diagnosis) -> Iterator[Verdict]:
    for way, each in found.calibration.items():
        says = (
            f"{_WAYS[way]}: a right first answer scores higher than a wrong one in {each.auroc:.0%} of comparisons; "
            f"turned into a probability, the score is off by {each.error:.1f} points on average."
        )
        if each.auroc < USELESS:
            yield Verdict("scores say little", "bad", says, "Set no threshold on this model's scores.")
        elif each.auroc < BELIEVABLE:
            yield Verdict(
                "scores say little", "watch", says, "A threshold on the score lets many wrong answers through."
            )
        else:
            yield Verdict("scores can be believed", "good", says)


def _gap(found: Diagnosis) -> Iterator[Verdict]:
    each = found.space
    says = (
        f"The centres of images and texts are {each.gap:.2f} apart; along the line between them, {each.separable:.0%} "
        "of texts lie beyond an image (50%: they mingle)."
    )
    if each.separable > APART:
        yield Verdict(
            "modality gap",
            "watch",
            f"{says} Scores within a side and between the sides cannot be compared.",
            "Pull the sides together: --set regularisers='[{name: mmd, weight: 0.01, on: vectors}]'.",
        )
    else:
        yield Verdict("no modality gap", "good", says)
