"""What the figures mean, in plain words, with limits and where they come from; and the report as one page that needs
nothing but itself: templates/report.html, with charts and thumbnails."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from polysem.data.collection import Collection
from polysem.data.images import is_image
from polysem.data.video import is_video, load_still
from polysem.errors import PolysemError
from polysem.inspection.diagnose.error_analysis import KINDS
from polysem.training import charts
from polysem.training.charts import COLOURS, Chart
from polysem.training.monitoring.diagnosis import (
    ALL_NEGATIVES_FIRST,
    STARVED,
    advise_against_set_collapse,
    advise_against_starvation,
)

if TYPE_CHECKING:
    from polysem.inspection.diagnose.diagnose import Diagnosis

Level = Literal["good", "watch", "bad"]

COLLAPSED = 0.01
"""Circular variance (ln: -4.6) under which the elements of a set all but agree: their mean cosine is above 0.97 for
four elements. DivE's poster has ln variances of -7.35 (PIE-Net) and -5.27 (match probability) for sets that collapsed,
and of -2.1 to -2.3 for sets that did not."""
CLOSE = 0.02
"""Circular variance (ln: -3.9) under which to watch it."""
SAME_ANSWERS = 0.99
"""Share of first answers that stay with one vector for each set, from which on the sets act as one vector. Measured on
emoji scenes: match probability 0.998, smooth-Chamfer 0.94 to 0.97, Chamfer 0.9, MIL 0.64."""
IDLE = 0.5
"""Share of its elements that a set must use at least, by exp(entropy of the supervision)."""
ONE_POINT = 0.95
"""Mean cosine of different items from which on all embeddings are at one point."""
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

DIRECTIONS = {"i2t": "Image → text", "t2i": "Text → image"}
SIDES = {"image": "Images", "text": "Texts"}
THUMBNAIL = 224
"""Pixels along the longer side: twice what is shown, for fine screens."""


@dataclass(frozen=True)
class HealthVerdict:
    """about: what is judged. says: the finding with its figures. advice: what to do, empty if nothing."""

    about: str
    level: Level
    says: str
    advice: str = ""


def make_verdicts(diagnosis: Diagnosis) -> list[HealthVerdict]:
    """All verdicts, the worst first."""
    verdicts = [verdict for check in _CHECKS for verdict in check(diagnosis)]
    return sorted(verdicts, key=lambda verdict: ("bad", "watch", "good").index(verdict.level))


def _check_retrieval(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    figures, learns_labels = diagnosis.retrieval, bool(diagnosis.gallery.model.labels)
    items = len(diagnosis.gallery.items)
    chance = 100 * min(1.0, 10 / items)
    by_chance = " and ".join(f"{x:.0f}%" if x >= 10 else f"{x:.2g}%" for x in (100 / items, chance))
    r10 = figures["t2i"]["r10"]
    says = (
        f"RSUM {figures['rsum']:.1f}. A caption finds its image first in {figures['t2i']['r1']:.1f}% of cases and "
        f"among the first ten in {r10:.1f}%; at random that would be {by_chance}."
    )
    cosines = (diagnosis.space.cosine_image, diagnosis.space.cosine_text)
    cosine = max(value for value in cosines if math.isfinite(value))
    if cosine > ONE_POINT:
        says += f" Two different items have a mean cosine of {cosine:.2f}: the space is not used."
        advice = "Train longer, or again with a lower learning rate: --set optimiser.lr=…"
        if not learns_labels:
            advice = f"Train again with a lower learning rate and with all negatives first: {ALL_NEGATIVES_FIRST}."
        yield HealthVerdict("everything at one point", "bad", says, advice)
        return
    poor: Level = "watch" if learns_labels else "bad"  # it may still find what has the same labels
    advice = "Hardly better than chance: see whether the captions belong to their pictures."
    if learns_labels:
        advice = "Hardly better than chance. Labels are what it learned: measure it with --protocol labels."
    level = poor if r10 < BY_CHANCE * chance and chance * BY_CHANCE < 100 else "good"
    yield _judge(level, "retrieval", "retrieval", says, advice)


def _check_labels(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    labels = diagnosis.predicted
    if labels is None:
        return
    scores = " and ".join(f"{score:.1f} for {side}s" for side, score in labels.micro_f1.items())
    says = f"Micro-F1 of predicted labels is {scores}. Of the {labels.present:,} labels of these items "
    says += " and ".join(f"{len(names):,} are never predicted of any {side}" for side, names in labels.silent.items())
    says += f", and {len(labels.unknown):,} are unknown to the model." if labels.unknown else "."
    silent = max(len(names) for names in labels.silent.values()) > MUTE * labels.present
    advice = "Rare labels stay below a probability of 0.5. Train longer; ranking by labels needs no such threshold."
    if not all(labels.micro_f1.values()):
        advice = "No right label reaches a probability of 0.5. Train longer, or with a lower learning rate."
        yield HealthVerdict("labels", "bad", says, advice)
    else:
        yield _judge("watch" if silent else "good", "labels", "labels", says, advice)


def _check_spread(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    for side, spread in diagnosis.spreads.items():
        level = _grade(spread.variance, COLLAPSED, CLOSE)
        degree = {"bad": "all but agree", "watch": "lie close together", "good": "lie apart"}[level]
        says = (
            f"The elements of {side} sets {degree}: circular variance {spread.variance:.2g}, ln "
            f"{spread.log_variance:.2f}; {spread.within:.1%} of the variance is within sets."
        )
        yield _judge(level, "diverse sets", "set collapse", says, advise_against_set_collapse(side))


def _check_single_vectors(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    overlap = diagnosis.as_one
    if overlap is None:
        return
    says = (
        f"With one vector in place of each set, the mean of its elements, {overlap.t2i:.1%} of the first "
        f"{overlap.first} images and {overlap.i2t:.1%} of the first captions stay the same."
    )
    if min(overlap.i2t, overlap.t2i) >= SAME_ANSWERS:
        says += " However far apart the elements lie, the score makes nothing of it: it counts all pairs alike."
        advice = "Take a similarity that lets the closest elements count more: --set similarity.name=smooth_chamfer."
        yield HealthVerdict("sets act as one vector", "bad", says, advice)
    else:
        yield HealthVerdict("sets at work", "good", f"{says} The rest is what the sets bring.")


def _check_usage(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    for side, usage in diagnosis.usages.items():
        k = len(usage.supervision)
        starved = [number for number, share in enumerate(usage.supervision) if share < STARVED / k]
        shares = ", ".join(f"element {number + 1} {share:.1%}" for number, share in enumerate(usage.supervision))
        says = f"Of the gradient that matching {side} sets receive, {shares}; an even share is {1 / k:.0%}."
        if starved or usage.effective < IDLE * k:
            count = f"{len(starved)} of {k} get next to nothing. " if starved else ""
            same = max((usage.constancy[number] for number in starved), default=0.0)
            fixed = f" The idle ones say the same of everything (up to {same:.0%} of them)." if same > 0.3 else ""
            says = f"{count}{usage.effective:.1f} of {k} elements of {side} sets are in use. {says}{fixed}"
            advice = advise_against_starvation(side, max(1, round(usage.effective)))
            yield HealthVerdict("starved elements", "bad", says, advice)
        else:
            says = f"{usage.effective:.1f} of {k} elements are in use. {says}"
            yield HealthVerdict("elements in use", "good", says)


def _check_pointing(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    game = diagnosis.pointing
    if isinstance(game, str):
        return
    baseline = "Chance" if game.chance >= game.habit else "A fixed way of looking"
    hits, above = game.accuracy, game.above
    says = (
        f"In {hits.value:.1%} of {hits.trials:,} trials ({hits.low:.1%} to {hits.high:.1%}) an element looks at a "
        f"thing that its nearest caption names. {baseline} would score {max(game.chance, game.habit):.1%}; the "
        f"difference is {100 * above.value:.1f} points ({100 * above.low:.1f} to {100 * above.high:.1f})."
    )
    about = "attention on what is named", "attention misses what is named"
    advice = "Do not read attention maps of this model as explanations."
    yield _judge("good" if above.low > 0 else "watch", *about, says, advice)


def _check_query_pointing(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    game = diagnosis.query_pointing
    if isinstance(game, str):
        return
    rate, texts = (game.nouns, "its name") if game.nouns is not None else (game.captions, "a caption")
    if rate is None:
        return
    hits, above = rate.accuracy, rate.above
    follows = ""
    if game.elsewhere is not None and game.nouns is not None:
        follows = f" The peak of another thing's name lies on it in {game.elsewhere:.1%}."
    says = (
        f"Asked for a thing in the picture by {texts}, the map of the score peaks on it in {hits.value:.1%} of "
        f"{hits.trials:,} trials ({hits.low:.1%} to {hits.high:.1%}); by chance {rate.chance:.1%}, by habit "
        f"{rate.habit:.1%}.{follows}"
    )
    about = "explanations point at what is asked for", "explanations miss what is asked for"
    advice = "Do not read the map of the score of this model as the place of what was asked for."
    yield _judge("good" if above.low > 0 else "watch", *about, says, advice)


def _check_hubs(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    for direction, hubs in diagnosis.hubness.items():
        says = (
            f"{DIRECTIONS[direction]}: the most frequent answer is among the first {hubs.k} of "
            f"{hubs.largest_hub:.1f}% of queries, and {hubs.never_returned:.1f}% of answers never are; "
            f"skewness {hubs.skewness:.1f}."
        )
        advice = "Re-score when searching: `polysem eval --rescore csls` shows the effect."
        level: Level = "bad" if hubs.skewness > MANY_HUBS else "watch" if hubs.skewness > HUBS else "good"
        yield _judge(level, "no hubs", "hubs", says, advice)


def _check_calibration(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    for direction, scores in diagnosis.calibration.items():
        says = (
            f"{DIRECTIONS[direction]}: a right first answer scores higher than a wrong one in {scores.auroc:.0%} of "
            f"comparisons; turned into a probability, the score is off by {scores.error:.1f} points on average."
        )
        level = _grade(scores.auroc, USELESS, BELIEVABLE)
        advice = "A threshold on the score lets many wrong answers through."
        if level == "bad":
            advice = "Set no threshold on this model's scores."
        yield _judge(level, "scores can be believed", "scores say little", says, advice)


def _check_gap(diagnosis: Diagnosis) -> Iterator[HealthVerdict]:
    space = diagnosis.space
    says = (
        f"The centres of images and texts are {space.gap:.2f} apart; along the line between them, "
        f"{space.separable:.0%} of texts lie beyond an image (50%: they mingle)."
    )
    if space.separable > APART:
        says += " Scores within a side and between the sides cannot be compared."
        advice = "Pull the sides together: --set regularisers='[{name: mmd, weight: 0.01, on: vectors}]'."
        yield HealthVerdict("modality gap", "watch", says, advice)
    else:
        yield HealthVerdict("no modality gap", "good", says)


def _grade(value: float, bad: float, watch: float) -> Level:
    """bad, watch: the limits under which a value is so."""
    return "bad" if value < bad else "watch" if value < watch else "good"


def _judge(level: Level, good: str, other: str, says: str, advice: str) -> HealthVerdict:
    """good, other: what the verdict is about, by its level; a good one needs no advice."""
    return HealthVerdict(good, level, says) if level == "good" else HealthVerdict(other, level, says, advice)


_CHECKS = (
    _check_retrieval,
    _check_labels,
    _check_spread,
    _check_single_vectors,
    _check_usage,
    _check_pointing,
    _check_query_pointing,
    _check_hubs,
    _check_calibration,
    _check_gap,
)


def render_report(diagnosis: Diagnosis) -> str:
    """The page's HTML."""
    gallery = diagnosis.gallery
    name = f"{gallery.name} on {gallery.items.name}"
    drawn = (_draw_spreads, _draw_usages, _draw_pointing, _draw_hubness, _draw_calibration)
    return charts.render_page(
        "polysem.inspection.diagnose",
        "report.html",
        title=f"Diagnosis of {name}",
        name=name,
        diagnosis=diagnosis,
        model=gallery.model,
        captions=gallery.items.captions,
        directions=DIRECTIONS,
        kinds=KINDS,
        charts={draw.__name__.removeprefix("_draw_"): list(draw(diagnosis)) for draw in drawn},
        mark_commands=charts.mark_commands,
        thumbnail=lambda item: _make_thumbnail(gallery.items, item),
    )


def _make_thumbnail(items: Collection, number: int) -> Markup:
    """An <img>; of an item that is not a picture, or cannot be read, a paragraph with its name."""
    item = items[number]
    path = item.media.path
    if item.media.is_features or not (is_image(path) or is_video(path)):
        return Markup("<p>{}</p>").format(item.id)
    try:
        image = load_still(path)
    except (OSError, PolysemError):
        return Markup("<p>{} (cannot be read)</p>").format(item.id)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=70)
    data = base64.b64encode(file.getvalue()).decode()
    return Markup('<img src="data:image/jpeg;base64,{0}" alt="{1}" title="{1}">').format(data, item.id)


def _draw_spreads(diagnosis: Diagnosis) -> Iterator[Markup]:
    spreads, limit = diagnosis.spreads, math.log(COLLAPSED)
    low = min((spread.edges[0] for spread in spreads.values()), default=0.0)
    high = max((0.0, *(spread.edges[-1] for spread in spreads.values())))
    x = (math.floor(min(low, limit) - 0.5), math.ceil(high))
    for i, (side, spread) in enumerate(spreads.items()):
        y = (0, 1.12 * max(spread.counts))
        chart = Chart(f"{SIDES[side]}: spread within sets", "ln circular variance of a set", "sets", x, y)
        marks = charts.bars(chart, spread.edges, spread.counts, f"c{i}")
        marks += charts.vertical_rule(chart, limit, "collapsed", end=True)
        alt = f"Mean {spread.log_variance:.2f}; below {limit:.1f} the elements of a set all but agree."
        yield charts.figure(chart, marks, alt, note=f"Mean: ln {spread.variance:.3g} = {spread.log_variance:.2f}")


def _draw_usages(diagnosis: Diagnosis) -> Iterator[Markup]:
    key = [("c0", "share of the gradient"), ("c1", "wins"), ("c2", "says the same of everything")]
    for side, usage in diagnosis.usages.items():
        rows = list(zip(usage.supervision, usage.wins, usage.constancy, strict=True))
        names = [f"element {number + 1}" for number in range(len(rows))]
        chart = Chart(SIDES[side], "", "share", (0, len(rows)), (0, 1.08), percent=True)
        marks = charts.grouped_bars(chart, rows, names, [style for style, _ in key])
        marks += charts.horizontal_rule(chart, 1 / len(rows), "")
        shares = zip(names, rows, strict=True)
        alt = [f"{name}: supervision {a:.0%}, wins {b:.0%}, same for all {c:.0%}" for name, (a, b, c) in shares]
        yield charts.figure(chart, marks, "; ".join(alt), key)


def _draw_pointing(diagnosis: Diagnosis) -> Iterator[Markup]:
    game = diagnosis.pointing
    if isinstance(game, str):
        return
    steps, slots = len(game.by_slot), len(game.by_slot[0])
    most = max(rate.high for row in game.by_slot for rate in row if math.isfinite(rate.high))
    x, y = (0.6, steps + 0.4), (0, min(1.0, max(most, game.chance) * 1.15))
    title, x_label = "Hits by element and iteration", "iteration" if steps > 1 else ""
    chart = Chart(title, x_label, "hits", x, y, percent=True, whole_x=True)
    marks = charts.horizontal_rule(chart, game.chance, "a random token")
    key, alt = [], []
    for slot in range(slots):
        style, shift = f"c{slot % COLOURS}", (slot - (slots - 1) / 2) * 0.06
        rates = [(step + 1 + shift, row[slot]) for step, row in enumerate(game.by_slot)]
        marks += charts.intervals(chart, [(x, rate.low, rate.high) for x, rate in rates], style)
        marks += charts.line(chart, [(x, rate.value) for x, rate in rates], style)
        key.append((style, f"element {slot + 1}"))
        alt.append(f"element {slot + 1} ends at {rates[-1][1].value:.0%}")
    yield charts.figure(chart, marks, "; ".join(alt), key)


def _draw_hubness(diagnosis: Diagnosis) -> Iterator[Markup]:
    for i, (direction, hubs) in enumerate(diagnosis.hubness.items()):
        x, y = (hubs.edges[0], hubs.edges[-1]), (0, 1.12 * max(hubs.counts, default=1))
        chart = Chart(DIRECTIONS[direction], f"queries that have it among the first {hubs.k}", "answers", x, y)
        marks = charts.bars(chart, hubs.edges, hubs.counts, f"c{i}")
        marks += charts.vertical_rule(chart, hubs.expected, "mean")
        alt = f"Skewness {hubs.skewness:.2f}, {hubs.never_returned:.1f} per cent are never returned."
        note = f"Skewness {hubs.skewness:.2f}; never returned: {hubs.never_returned:.1f}%"
        yield charts.figure(chart, marks, alt, note=note)


def _draw_calibration(diagnosis: Diagnosis) -> Iterator[Markup]:
    labels = ("probability that the score stands for", "first answers that are right")
    for i, (direction, scores) in enumerate(diagnosis.calibration.items()):
        chart = Chart(DIRECTIONS[direction], *labels, (0, 1), (0, 1), percent=True)
        marks = [f'<path class="mark" d="M{chart.px(0)} {chart.py(0)}L{chart.px(1)} {chart.py(1)}"/>']
        marks += charts.line(chart, [(b.claimed, b.right) for b in scores.bins], f"c{i}")
        alt = f"AUROC {scores.auroc:.2f}, calibration error {scores.error:.1f} points."
        note = f"AUROC of the first score {scores.auroc:.2f}; error {scores.error:.1f} points; dashed: perfect"
        yield charts.figure(chart, marks, alt, note=note)
