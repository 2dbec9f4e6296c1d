"""report.html: how a run went, on one page that needs nothing but itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import yaml

from polysem import atomic_write
from polysem.training.curves import Axes, Curve, draw
from polysem.training.folder import RUN
from polysem.training.metrics_log import METRICS, read
from polysem.training.validation import CUT, merit

REPORT = "report.html"

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --faint: #667079; --paper: #ffffff; --line: #d5d9de; --warn: #fff4d6;
  --c0: #2563b0; --c1: #c2571a; --c2: #2d8544; --c3: #9a3fa0; --c4: #b0303c; --c5: #4d6570; --c6: #8a6d00;
  --c7: #157a80 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --faint: #98a2ab; --paper: #16191c; --line: #363c42;
  --warn: #3d3213; --c0: #6ea8ee; --c1: #f09a62; --c2: #74c98a; --c3: #d68bdb; --c4: #ef7c86; --c5: #a3bac5;
  --c6: #d9bd55; --c7: #5fc4ca } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1180px;
  margin: 2rem auto; padding: 0 1.2rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1rem; margin: 0 0 .2rem } p { margin: .2rem 0 }
.faint { color: var(--faint) } .facts { display: flex; flex-wrap: wrap; gap: .4rem 2.2rem; margin: 1rem 0 }
.facts b { display: block; font-size: 1.25rem } .facts span { color: var(--faint); font-size: .85rem }
.finding { background: var(--warn); border-left: 4px solid var(--c1); padding: .5rem .9rem; margin: .6rem 0 }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 1.6rem 2rem;
  margin: 1.4rem 0 }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--faint); font: 11px system-ui, sans-serif }
.key { font-size: .82rem; color: var(--faint) } .key span { margin-right: .9rem; overflow-wrap: anywhere }
figure { min-width: 0; margin: 0 }
.key i { display: inline-block; width: 1.1rem; border-top: 3px solid; vertical-align: middle; margin-right: .3rem }
table { border-collapse: collapse } td, th { padding: .15rem .9rem .15rem 0; text-align: right }
td:first-child, th:first-child { text-align: left } th { color: var(--faint); font-weight: normal; font-size: .85rem }
pre { overflow: auto; border: 1px solid var(--line); padding: .8rem; font-size: .85rem }
summary { cursor: pointer } code { white-space: nowrap; font-size: .88em }
"""

# Something to copy into a command, for which a line break would be a pity.
_COMMAND = re.compile(r"(--set [\w.]+=(?:'[^']*'|[^\s',;:)]*[^\s',;:).])|`[^`]+`)")


def write(run: Path) -> Path:
    """Make RUN/report.html from RUN/metrics.jsonl and RUN/run.json. What is missing there is left out here."""
    about = _about(run)
    records = [record for record in read(run / METRICS) if isinstance(record.get("step"), int)]
    page = _page(run.resolve().name, about, records)
    path = run / REPORT
    atomic_write.write_text(path, page)
    return path


def _about(run: Path) -> dict[str, Any]:
    try:
        found = json.loads((run / RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _page(folder: str, about: Mapping[str, Any], records: list[dict[str, Any]]) -> str:
    recipe, data = _mapping(about, "recipe"), _mapping(about, "data")
    title = f"{recipe.get('name', folder)} on {data['name']}" if "name" in data else str(recipe.get("name", folder))
    steps, validations, findings = (
        [r for r in records if r.get("kind") == k] for k in ("step", "validation", "diagnosis")
    )
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="faint">{escape(str(recipe.get("summary", "")))}</p>',
        _headline(about, data, records, validations),
        *(_finding(finding) for finding in findings),
        _recalls(_mapping(about, "best") or _best(validations)),
        f'<div class="curves">{"".join(draw(axes) for axes in _curves(steps, validations))}</div>',
        _details("Recipe, resolved", recipe),
        _details("Data and versions", {k: about[k] for k in ("data", "protocol", "versions") if k in about}),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>{''.join(parts)}</body></html>\n"
    )


# ------------------------------------------------------------------------------------------------------------- words


def _headline(
    about: Mapping[str, Any], data: Mapping[str, Any], records: list[dict[str, Any]], validations: list[dict[str, Any]]
) -> str:
    best = _mapping(about, "best") or _best(validations)
    last = max((record["step"] for record in records), default=None)
    times = (about.get("seconds"), *(record.get("seconds") for record in records[-50:]))
    seconds = [float(time) for time in times if time is not None and _is_number(time)]
    facts = []
    if _is_number(best.get("rsum")):
        facts.append((f"{best['rsum']:.1f}", f"best validation RSUM, step {best.get('step', '?')}"))
    if last is not None:
        total = about.get("steps")
        facts.append((f"{last:,}" + (f" of {total:,}" if isinstance(total, int) else ""), "steps"))
    if seconds:
        facts.append((duration(max(seconds)), "training time"))
    sizes = [f"{data[split]:,}" for split in ("train", "val") if isinstance(data.get(split), int)]
    if sizes:
        facts.append((" / ".join(sizes), "training / validation items"))
    facts.append((str(about.get("status", "unknown")), "status"))
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in facts)
    protocol = f'<p class="faint">Validation: {escape(str(about["protocol"]))}</p>' if about.get("protocol") else ""
    return f'<div class="facts">{cells}</div>{protocol}'


def _finding(finding: Mapping[str, Any]) -> str:
    name, says, advice = (escape(str(finding.get(key, "")), quote=False) for key in ("name", "says", "advice"))
    advice = _COMMAND.sub(r"<code>\1</code>", advice)
    when = f"step {finding['step']:,}" if finding["step"] else "before the first step"
    return (
        f'<div class="finding" role="note"><h2>{name}, {when}</h2><p>{says}</p><p><b>What to do:</b> {advice}</p></div>'
    )


def _recalls(best: Mapping[str, Any]) -> str:
    rows = []
    for way, name in (("i2t", "Image to text"), ("t2i", "Text to image")):
        values = [_mapping(best, way).get(f"r{k}") for k in (1, 5, 10)]
        if all(map(_is_number, values)):
            rows.append(f"<tr><td>{name}</td>{''.join(f'<td>{value:.1f}</td>' for value in values)}</tr>")
    head = "<tr><th>At the best step</th><th>R@1</th><th>R@5</th><th>R@10</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>" if rows else ""


def _details(name: str, content: Mapping[str, Any]) -> str:
    if not content:
        return ""
    text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    return f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"


def duration(seconds: float) -> str:
    """For people: 42 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _best(validations: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max((v for v in validations if _is_number(v.get("rsum"))), key=merit, default={})


# ------------------------------------------------------------------------------------------------------------ curves


def _curves(steps: list[dict[str, Any]], validations: list[dict[str, Any]]) -> list[Axes]:
    infos = _below(steps, "info")
    recalls = [
        _curve(validations, (way, name), f"{way} {name.replace('r', 'R@')}")
        for way in ("i2t", "t2i")
        for name in ("r1", "r5", "r10")
    ]
    by_labels = [
        _curve(validations, ("labels", name, side), f"{name} {side}")
        for name, sides in ((f"ndcg{CUT}", ("i2t", "t2i")), ("micro_f1", ("image", "text")))
        for side in sides
    ]
    variances = [
        *(_logarithm(curve, f"{curve.name}s, training") for curve in _below(steps, "variance")),
        *(_curve(validations, ("log_variance", side), f"{side}s, validation") for side in ("image", "text")),
    ]
    total = _curve(steps, ("loss",), "total")
    found = [
        Axes("Loss", "loss", (total, *_below(steps, "parts")), log=_spans_orders(total)),
        Axes("Validation RSUM", "RSUM", (_curve(validations, ("rsum",), "RSUM"),)),
        Axes("Validation recalls", "recall, %", tuple(recalls)),
        Axes("Validation by labels", "%", tuple(by_labels)),
        Axes("Learning rates", "learning rate", _merged(_below(steps, "lr")), log=True),
        Axes("Active triplets", "share of pairs", tuple(c for c in infos if c.name.startswith("active"))),
        Axes("Negatives per match, K", "K", tuple(c for c in infos if c.name in ("k", "k_i2t", "k_t2i"))),
        Axes("Log circular variance of the sets", "ln variance", tuple(variances)),
        Axes("Gradient norm", "norm before clipping", (_curve(steps, ("grad_norm",), "norm"),), log=True),
        Axes("Speed", "items per second", (_curve(steps, ("items_per_second",), "items/s"),)),
    ]
    end = float(max((record["step"] for record in (*steps, *validations)), default=0))
    return [replace(axes, end=end) for axes in found if axes.drawn]


def _curve(records: list[dict[str, Any]], path: tuple[str, ...], name: str) -> Curve:
    points = []
    for record in records:
        value: Any = record
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if _is_number(value):
            points.append((float(record["step"]), float(value)))
    return Curve(name, tuple(points))


def _below(records: list[dict[str, Any]], key: str) -> tuple[Curve, ...]:
    """A curve for each name that ever stands under `key`, in order of appearance."""
    names = dict.fromkeys(name for record in records for name in _mapping(record, key))
    return tuple(_curve(records, (key, name), name) for name in names)


def _merged(curves: tuple[Curve, ...]) -> tuple[Curve, ...]:
    """Groups that share a learning rate share a curve; one rate for all needs no names."""
    by_points: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for curve in curves:
        by_points.setdefault(curve.points, []).append(curve.name)
    if len(by_points) == 1:
        return tuple(Curve("all parts", points) for points in by_points)
    return tuple(Curve(", ".join(names), points) for points, names in by_points.items())


def _logarithm(curve: Curve, name: str) -> Curve:
    return Curve(name, tuple((step, math.log(max(value, 1e-12))) for step, value in curve.points))


def _spans_orders(curve: Curve) -> bool:
    """From all negatives to the hardest a summed loss falls a hundredfold: what follows would be a flat line."""
    values = [value for _, value in curve.points if math.isfinite(value)]
    return bool(values) and min(values) > 0 and max(values) > 30 * min(values)


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = content.get(key)
    return found if isinstance(found, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
