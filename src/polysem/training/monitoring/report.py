"""report.html: how a run went, on one page that needs nothing but itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from markupsafe import Markup

from polysem import atomic_write
from polysem.training import charts
from polysem.training.charts import COLOURS, format_number
from polysem.training.run_folder import METRICS, RUN, is_number, read_json, read_metrics
from polysem.training.validation import NDCG_DEPTH, selection_score

REPORT = "report.html"
POINTS = 1000
"""Most points of a curve: a chart is some 600 pixels wide."""
SMOOTHED = 200
"""More points than this are drawn faintly, with their moving average over them."""

Point = tuple[float, float]
Curves = dict[str, list[Point]]
"""By name: (step, value), finite."""


def write_report(run: Path) -> Path:
    """Make RUN/report.html from RUN/metrics.jsonl and RUN/run.json. What is missing there is left out here."""
    about = read_json(run / RUN)
    records = [record for record in read_metrics(run / METRICS) if isinstance(record.get("step"), int)]
    steps, validations, findings = (
        [record for record in records if record.get("kind") == kind] for kind in ("step", "validation", "diagnosis")
    )
    recipe, data = _mapping(about, "recipe"), _mapping(about, "data")
    title = str(recipe.get("name", run.resolve().name)) + (f" on {data['name']}" if "name" in data else "")
    measured = [validation for validation in validations if is_number(validation.get("rsum"))]
    best = _mapping(about, "best") or max(measured, key=selection_score, default={})
    recalls = {
        name: [_mapping(best, way).get(f"r{k}") for k in (1, 5, 10)]
        for way, name in (("i2t", "Image to text"), ("t2i", "Text to image"))
    }
    versions = {key: about[key] for key in ("data", "protocol", "versions") if key in about}
    details = (("Recipe, resolved", recipe), ("Data and versions", versions))
    page = charts.render_page(
        "polysem.training.monitoring",
        "report.html",
        title=title,
        summary=recipe.get("summary", ""),
        facts=_facts(about, data, best, records),
        protocol=about.get("protocol"),
        findings=[{**finding, "advice": charts.mark_commands(finding.get("advice", ""))} for finding in findings],
        recalls={name: values for name, values in recalls.items() if all(map(is_number, values))},
        figures=_draw_panels(steps, validations),
        details={
            name: yaml.safe_dump(dict(each), sort_keys=False, allow_unicode=True) for name, each in details if each
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
    if is_number(best.get("rsum")):
        yield f"{best['rsum']:.1f}", f"best validation RSUM, step {best.get('step', '?')}"
    if records:
        last, total = max(record["step"] for record in records), about.get("steps")
        yield f"{last:,}" + (f" of {total:,}" if isinstance(total, int) else ""), "steps"
    times = (about.get("seconds"), *(record.get("seconds") for record in records[-50:]))
    seconds = [float(time) for time in times if is_number(time)]
    if seconds:
        yield format_duration(max(seconds)), "training time"
    sizes = [f"{data[split]:,}" for split in ("train", "val") if isinstance(data.get(split), int)]
    if sizes:
        yield " / ".join(sizes), "training / validation items"
    yield str(about.get("status", "unknown")), "status"


def _draw_panel(title: str, y_label: str, curves: Curves, log: bool, end: float) -> Markup:
    """Curves on common axes as a figure; nothing if no curve has a point. log: on a logarithmic axis, which leaves out
    0. end: the last step of the run, the same for all panels of a page."""
    curves = {name: kept for name, points in curves.items() if (kept := [p for p in points if p[1] > 0 or not log])}
    if not curves:
        return Markup()
    steps = [0.0, end, *(step for points in curves.values() for step, _ in points)]
    values = [value for points in curves.values() for _, value in points]
    chart = charts.Chart(title, "step", y_label, charts.data_range(steps), charts.data_range(values, log), log=log)
    marks, key, alt = list[str](), [], ["Over steps."]
    for i, (name, points) in enumerate(curves.items()):
        style = f"c{i % COLOURS}"
        dashed = style + " dashed" * (i >= COLOURS)
        if len(points) > SMOOTHED:
            marks += charts.line(chart, downsample(points), f"{dashed} noise", dots=False)
            means = [
                (points[(first + last - 1) // 2][0], fmean(value for _, value in points[first:last]))
                for first, last in _stretches(len(points), SMOOTHED)
            ]
            marks += charts.line(chart, means, dashed, dots=False)
        else:  # a few measurements, such as validations, are shown one by one
            marks += charts.line(chart, points, dashed, dots=len(points) <= 60)
        key.append((style, name))
        (_, first_value), (step, last_value) = points[0], points[-1]
        alt.append(f"{name}: from {format_number(first_value)} to {format_number(last_value)} at step {step:.0f}.")
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


def _stretches(length: int, count: int) -> Iterable[tuple[int, int]]:
    cuts = pairwise(i * length // count for i in range(count + 1))
    return ((first, last) for first, last in cuts if last > first)


def _draw_panels(steps: list[dict[str, Any]], validations: list[dict[str, Any]]) -> list[Markup]:
    infos = _curves_under(steps, "info")
    ways, sides = ("i2t", "t2i"), ("image", "text")
    recalls = {f"{way} R@{k}": _points(validations, way, f"r{k}") for way in ways for k in (1, 5, 10)}
    by_labels = {
        f"{name} {side}": _points(validations, "labels", name, side)
        for name, each in ((f"ndcg{NDCG_DEPTH}", ways), ("micro_f1", sides))
        for side in each
    }
    variances = {
        f"{side}s, training": [(step, math.log(max(value, 1e-12))) for step, value in points]
        for side, points in _curves_under(steps, "variance").items()
    }
    variances |= {f"{side}s, validation": _points(validations, "log_variance", side) for side in sides}
    # Groups that share a learning rate share a curve; one rate for all needs no names.
    rates: dict[tuple[Point, ...], list[str]] = {}
    for name, points in _curves_under(steps, "lr").items():
        rates.setdefault(tuple(points), []).append(name)
    lr = {", ".join(names) if len(rates) > 1 else "all parts": list(points) for points, names in rates.items()}
    total = _points(steps, "loss")
    losses = [value for _, value in total]
    # From all negatives to the hardest a summed loss falls a hundredfold: what follows would be a flat line.
    spans_orders = bool(losses) and min(losses) > 0 and max(losses) > 30 * min(losses)
    active = {name: points for name, points in infos.items() if name.startswith("active")}
    negatives = {name: points for name, points in infos.items() if name in ("k", "k_i2t", "k_t2i")}
    panels = (
        ("Loss", "loss", {"total": total} | _curves_under(steps, "parts"), spans_orders),
        ("Validation RSUM", "RSUM", {"RSUM": _points(validations, "rsum")}, False),
        ("Validation recalls", "recall, %", recalls, False),
        ("Validation by labels", "%", by_labels, False),
        ("Learning rates", "learning rate", lr, True),
        ("Active triplets", "share of pairs", active, False),
        ("Negatives per match, K", "K", negatives, False),
        ("Log circular variance of the sets", "ln variance", variances, False),
        ("Gradient norm", "norm before clipping", {"norm": _points(steps, "grad_norm")}, True),
        ("Speed", "items per second", {"items/s": _points(steps, "items_per_second")}, False),
    )
    end = float(max((record["step"] for record in (*steps, *validations)), default=0))
    return [_draw_panel(*panel, end) for panel in panels]


def _points(records: list[dict[str, Any]], *path: str) -> list[Point]:
    points = []
    for record in records:
        value: Any = record
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if is_number(value) and math.isfinite(value):
            points.append((float(record["step"]), float(value)))
    return points


def _curves_under(records: list[dict[str, Any]], key: str) -> Curves:
    """A curve for each name that ever stands under `key`, in order of appearance."""
    names = dict.fromkeys(name for record in records for name in _mapping(record, key))
    return {name: _points(records, key, name) for name in names}


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key)
    return value if isinstance(value, Mapping) else {}
