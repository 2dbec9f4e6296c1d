"""The report as one page that needs nothing but itself: templates/report.html, with charts and thumbnails."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from markupsafe import Markup

from polysem.data.collection import Collection
from polysem.data.images import is_image
from polysem.data.video import is_video, load_still
from polysem.errors import PolysemError
from polysem.inspection.diagnose.error_analysis import KINDS
from polysem.inspection.diagnose.verdicts import COLLAPSED
from polysem.training import charts
from polysem.training.charts import COLOURS, Chart

if TYPE_CHECKING:
    from polysem.inspection.diagnose.diagnose import Diagnosis

DIRECTIONS = {"i2t": "Image → text", "t2i": "Text → image"}
SIDES = {"image": "Images", "text": "Texts"}
THUMBNAIL = 224
"""Pixels along the longer side: twice what is shown, for fine screens."""


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
    """An <img>; of an item that is no picture, or cannot be read, a paragraph with its name."""
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
