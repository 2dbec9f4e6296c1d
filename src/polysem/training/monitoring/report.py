"""report.html: how a run went, on one page that needs nothing but itself."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from markupsafe import Markup

from polysem import atomic_write
from polysem.training import charts
from polysem.training.charts import COLOURS, Chart, format_number
from polysem.training.run_folder import METRICS, RUN, read_metrics
from polysem.training.validation import NDCG_DEPTH, selection_score

REPORT = "report.html"
POINTS = 1000
"""Most points of a curve: a chart is some 600 pixels wide."""
SMOOTHED = 200
"""More points than this are drawn faintly, with their moving average over them."""

Point = tuple[float, float]


def write_report(run: Path) -> Path:
    """Make RUN/report.html from RUN/metrics.jsonl and RUN/run.json. What is missing there is left out here."""
    try:
        about = json.loads((run / RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        about = {}
    about = about if isinstance(about, dict) else {}
    records = [record for record in read_metrics(run / METRICS) if isinstance(record.get("step"), int)]
    steps, validations, findings = (
        [record for record in records if record.get("kind") == kind] for kind in ("step", "validation", "diagnosis")
    )
    recipe, data = _mapping(about, "recipe"), _mapping(about, "data")
    title = str(recipe.get("name", run.resolve().name)) + (f" on {data['name']}" if "name" in data else "")
    best = _mapping(about, "best") or _best(validations)
    recalls = {
        name: [_mapping(best, way).get(f"r{k}") for k in (1, 5, 10)]
        for way, name in (("i2t", "Image to text"), ("t2i", "Text to image"))
    }
    details = {
        "Recipe, resolved": recipe,
        "Data and versions": {key: about[key] for key in ("data", "protocol", "versions") if key in about},
    }
    page = charts.render_page(
        "polysem.training.monitoring",
        "report.html",
        title=title,
        summary=recipe.get("summary", ""),
        facts=_facts(about, data, best, records),
        protocol=about.get("protocol"),
        findings=[{**finding, "advice": charts.mark_commands(finding.get("advice", ""))} for finding in findings],
        recalls={name: values for name, values in recalls.items() if all(map(_is_number, values))},
        figures=[panel.draw() for panel in _panels(steps, validations)],
        details={
            name: yaml.safe_dump(dict(each), sort_keys=False, allow_unicode=True)
            for name, each in details.items()
            if each
        },
    )
    atomic_write.write_text(run / REPORT, page)
    return run / REPORT


def format_duration(seconds: float) -> str:
    """For people: 42 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _facts(
    about: Mapping[str, Any], data: Mapping[str, Any], best: Mapping[str, Any], records: list[dict[str, Any]]
) -> Iterable[tuple[str, str]]:
    """The figures at the top of the page: (value, name)."""
    if _is_number(best.get("rsum")):
        yield f"{best['rsum']:.1f}", f"best validation RSUM, step {best.get('step', '?')}"
    if records:
        last, total = max(record["step"] for record in records), about.get("steps")
        yield f"{last:,}" + (f" of {total:,}" if isinstance(total, int) else ""), "steps"
    times = (about.get("seconds"), *(record.get("seconds") for record in records[-50:]))
    seconds = [float(time) for time in times if time is not None and _is_number(time)]
    if seconds:
        yield format_duration(max(seconds)), "training time"
    sizes = [f"{data[split]:,}" for split in ("train", "val") if isinstance(data.get(split), int)]
    if sizes:
        yield " / ".join(sizes), "training / validation items"
    yield str(about.get("status", "unknown")), "status"


def _best(validations: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max((v for v in validations if _is_number(v.get("rsum"))), key=selection_score, default={})


# ------------------------------------------------------------------------------------------------------------ curves


@dataclass(frozen=True)
class Curve:
    """name: what it shows. points: (step, value), finite."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """Curves on common axes. log: on a logarithmic axis, which leaves out 0. end: the last step of the run, the same
    for all panels of a page."""

    title: str
    y_label: str
    curves: tuple[Curve, ...]
    log: bool = False
    end: float = 0.0

    def draw(self) -> Markup:
        """The panel as a figure; nothing if no curve has a point."""
        if not self.curves:
            return Markup()
        steps = [0.0, self.end, *(step for curve in self.curves for step, _ in curve.points)]
        values = [value for curve in self.curves for _, value in curve.points]
        ranges = charts.data_range(steps), charts.data_range(values, self.log)
        chart = Chart(self.title, "step", self.y_label, *ranges, log=self.log)
        marks, key, alt = list[str](), [], ["Over steps."]
        for i, curve in enumerate(self.curves):
            style = f"c{i % COLOURS}"
            dashed = style + " dashed" * (i >= COLOURS)
            if len(curve.points) > SMOOTHED:
                marks += charts.line(chart, downsample(curve.points), f"{dashed} noise", dots=False)
                marks += charts.line(chart, _average(curve.points), dashed, dots=False)
            else:  # a few measurements, such as validations, are shown one by one
                marks += charts.line(chart, curve.points, dashed, dots=len(curve.points) <= 60)
            key.append((style, curve.name))
            (_, first), (step, last) = curve.points[0], curve.points[-1]
            alt.append(f"{curve.name}: from {format_number(first)} to {format_number(last)} at step {step:.0f}.")
        return charts.figure(chart, marks, " ".join(alt), key)


def downsample(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most `most` points that keep every peak: of each stretch the lowest and the highest, and the ends."""
    if len(points) <= most:
        return list(points)
    inner, kept = points[1:-1], [points[0]]
    for first, last in _stretches(len(inner), max(1, most // 2 - 1)):
        stretch = inner[first:last]
        kept += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return [*kept, points[-1]]


def _average(points: Sequence[Point]) -> list[Point]:
    """The means of `SMOOTHED` stretches."""
    return [
        (points[(first + last - 1) // 2][0], fmean(value for _, value in points[first:last]))
        for first, last in _stretches(len(points), SMOOTHED)
    ]


def _stretches(length: int, count: int) -> Iterable[tuple[int, int]]:
    cuts = pairwise(i * length // count for i in range(count + 1))
    return ((first, last) for first, last in cuts if last > first)


def _panels(steps: list[dict[str, Any]], validations: list[dict[str, Any]]) -> list[Panel]:
    infos = _curves_under(steps, "info")
    recalls = [
        _curve(validations, (way, name), f"{way} {name.replace('r', 'R@')}")
        for way in ("i2t", "t2i")
        for name in ("r1", "r5", "r10")
    ]
    by_labels = [
        _curve(validations, ("labels", name, side), f"{name} {side}")
        for name, sides in ((f"ndcg{NDCG_DEPTH}", ("i2t", "t2i")), ("micro_f1", ("image", "text")))
        for side in sides
    ]
    variances = [
        Curve(f"{curve.name}s, training", tuple((step, math.log(max(value, 1e-12))) for step, value in curve.points))
        for curve in _curves_under(steps, "variance")
    ]
    variances += [_curve(validations, ("log_variance", side), f"{side}s, validation") for side in ("image", "text")]
    total = _curve(steps, ("loss",), "total")
    losses = [value for _, value in total.points]
    # From all negatives to the hardest a summed loss falls a hundredfold: what follows would be a flat line.
    spans_orders = bool(losses) and min(losses) > 0 and max(losses) > 30 * min(losses)
    panels = (
        ("Loss", "loss", [total, *_curves_under(steps, "parts")], spans_orders),
        ("Validation RSUM", "RSUM", [_curve(validations, ("rsum",), "RSUM")], False),
        ("Validation recalls", "recall, %", recalls, False),
        ("Validation by labels", "%", by_labels, False),
        ("Learning rates", "learning rate", _merge_equal(_curves_under(steps, "lr")), True),
        ("Active triplets", "share of pairs", [c for c in infos if c.name.startswith("active")], False),
        ("Negatives per match, K", "K", [c for c in infos if c.name in ("k", "k_i2t", "k_t2i")], False),
        ("Log circular variance of the sets", "ln variance", variances, False),
        ("Gradient norm", "norm before clipping", [_curve(steps, ("grad_norm",), "norm")], True),
        ("Speed", "items per second", [_curve(steps, ("items_per_second",), "items/s")], False),
    )
    end = float(max((record["step"] for record in (*steps, *validations)), default=0))
    return [Panel(title, label, _drawable(curves, log), log, end) for title, label, curves, log in panels]


def _drawable(curves: Iterable[Curve], log: bool) -> tuple[Curve, ...]:
    if log:
        curves = [Curve(curve.name, tuple(p for p in curve.points if p[1] > 0)) for curve in curves]
    return tuple(curve for curve in curves if curve.points)


def _curve(records: list[dict[str, Any]], path: tuple[str, ...], name: str) -> Curve:
    points = []
    for record in records:
        value: Any = record
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if _is_number(value) and math.isfinite(value):
            points.append((float(record["step"]), float(value)))
    return Curve(name, tuple(points))


def _curves_under(records: list[dict[str, Any]], key: str) -> list[Curve]:
    """A curve for each name that ever stands under `key`, in order of appearance."""
    names = dict.fromkeys(name for record in records for name in _mapping(record, key))
    return [_curve(records, (key, name), name) for name in names]


def _merge_equal(curves: list[Curve]) -> list[Curve]:
    """Groups that share a learning rate share a curve; one rate for all needs no names."""
    by_points: dict[tuple[Point, ...], list[str]] = {}
    for curve in curves:
        by_points.setdefault(curve.points, []).append(curve.name)
    return [
        Curve(", ".join(names) if len(by_points) > 1 else "all parts", points) for points, names in by_points.items()
    ]


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key)
    return value if isinstance(value, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
