"""The synthetic experiment on one page that needs nothing but itself: the table, and learned against true weights."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from polysem.reproduction.gpo_runs import Cell, Experiment
from polysem.reproduction.gpo_synthetic import SHOWN, Run
from polysem.reproduction.gpo_table import DESIGNS, SIZES
from polysem.reproduction.patterns import coefficients

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --faint: #667079; --paper: #ffffff; --line: #d5d9de;
  --true: #8a939b; --learned: #c2571a; --met: #2d8544; --off: #b0303c }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --faint: #98a2ab; --paper: #16191c; --line: #363c42;
  --true: #8a939b; --learned: #f09a62; --met: #74c98a; --off: #ef7c86 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1240px;
  margin: 2rem auto; padding: 0 1.2rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .2rem } p { margin: .3rem 0 }
.faint, th { color: var(--faint) } .met { color: var(--met) } .better { color: var(--learned) }
.worse { color: var(--off) }
.scroll { overflow-x: auto } table { border-collapse: collapse } th { font-weight: normal; font-size: .85rem }
td, th { padding: .15rem .9rem .15rem 0; text-align: left; white-space: nowrap }
.panels { display: grid; grid-template-columns: repeat(var(--columns), minmax(200px, 1fr)); gap: .5rem 1rem;
  min-width: calc(var(--columns) * 210px) }
.panels b { font-size: .9rem } figure { margin: 0 } svg { width: 100%; height: auto; display: block }
svg text { fill: var(--faint); font: 11px system-ui, sans-serif } path { fill: none }
.true { stroke: var(--true); stroke-width: 4; stroke-opacity: .55 } .axis { stroke: var(--line) }
.learned { stroke: var(--learned); stroke-width: 1.4 } .key span { margin-right: 1.2rem }
.key i { display: inline-block; width: 1.4rem; vertical-align: middle; margin-right: .3rem }
"""

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 280, 130, 40, 18, 30
_SIGNS = {"met": "met", "better": "better", "worse": "not met"}


def page(experiment: Experiment) -> str:
    """The whole page as HTML."""
    runs = experiment.runs
    designs, patterns = (
        list(dict.fromkeys(names)) for names in zip(*((r.design, r.pattern) for r in runs), strict=True)
    )
    parts = [
        "<h1>GPO on synthetic patterns</h1>",
        f'<p class="faint">VSE∞, supplement, Table 6. {experiment.seeds} seed{"s" * (experiment.seeds > 1)}, '
        f"{experiment.settings.steps:,} steps, {experiment.cpu_seconds / 60:.1f} minutes of computing.</p>",
        "<h2>RMSE of the coefficients</h2><p>Ours, the paper's in brackets.</p>",
        _table(experiment.cells, designs, patterns),
        '<p class="key"><span><i style="border-top: 4px solid var(--true)"></i>true coefficients</span>'
        '<span><i style="border-top: 2px solid var(--learned)"></i>learned, one line for each seed</span></p>',
        *(_section(pattern, [run for run in runs if run.pattern == pattern], designs) for pattern in patterns),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>GPO on synthetic patterns</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _table(cells: Sequence[Cell], designs: Sequence[str], patterns: Sequence[str]) -> str:
    found = {(cell.design, cell.pattern, cell.sizes): cell for cell in cells}
    head = "".join(f"<th>{escape(DESIGNS[design])}</th>" for design in designs)
    rows = []
    for pattern in patterns:
        for sizes, span in SIZES.items():
            values = (found[design, pattern, sizes] for design in designs)
            columns = "".join(
                f"<td>{cell.ours:.4f} ({cell.paper:.3f}) "
                f'<span class="{cell.verdict}">{_SIGNS[cell.verdict]}</span></td>'
                for cell in values
            )
            rows.append(f"<tr><td>{escape(pattern)}</td><td>{sizes}, {span[0]}–{span[-1]}</td>{columns}</tr>")
    return f'<div class="scroll"><table><tr><th>Pattern</th><th>Sizes</th>{head}</tr>{"".join(rows)}</table></div>'


def _section(pattern: str, runs: Sequence[Run], designs: Sequence[str]) -> str:
    panels = [f"<b>{escape(DESIGNS[design])}</b>" for design in designs]
    for size in SHOWN:
        true = coefficients(pattern, [size], size)[0].tolist()
        # One scale for a row of panels, so that designs can be compared.
        top = max(max(true), *(max(run.learned[size]) for run in runs))
        for design in designs:
            panels.append(_panel(size, true, [run.learned[size] for run in runs if run.design == design], top))
    return (
        f'<h2>Pattern {escape(pattern)}</h2><div class="scroll">'
        f'<div class="panels" style="--columns: {len(designs)}">{"".join(panels)}</div></div>'
    )


def _panel(size: int, true: Sequence[float], learned: Sequence[Sequence[float]], top: float) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - 8

    def path(values: Sequence[float], kind: str) -> str:
        points = (
            f"{_LEFT + (right - _LEFT) * k / (size - 1):.1f} {bottom - (bottom - _TOP) * value / top:.1f}"
            for k, value in enumerate(values)
        )
        return f'<path class="{kind}" d="M{"L".join(points)}"/>'

    def text(x: float, y: float, anchor: str, words: str) -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'

    below, middle = _HEIGHT - 14, (_LEFT + right) / 2
    marks = [
        f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>',
        text(_LEFT, 11, "start", f"n = {size}" + ("" if size in SIZES["seen"] else ", not seen in training")),
        text(_LEFT - 5, _TOP + 5, "end", f"{top:.2g}"),
        text(_LEFT - 5, bottom + 3, "end", "0"),
        text(_LEFT, below, "start", "1"),
        text(middle, below, "middle", "position k, largest value first"),
        text(right, below, "end", str(size)),
        path(true, "true"),
        *(path(values, "learned") for values in learned),
    ]
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Coefficients of a set of {size}">'
        f"{''.join(marks)}</svg></figure>"
    )
