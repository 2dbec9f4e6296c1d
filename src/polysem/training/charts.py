"""Charts as inline SVG and pages from templates, coloured by CSS variables so that they follow light and dark.

Not matplotlib: ten charts take it 1.2 to 1.4 s after 1.9 s of import, and 0.03 to 0.4 s here (two cores), at the end of
every run, and its SVG has one fixed set of colours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

COLOURS = 8
"""Colours that templates/page.css defines, as the classes c0 … c7."""

# Something to copy into a command, which must not be broken at the end of a line.
_COMMAND = re.compile(r"(--set [\w.]+=(?:'[^']*'|[^\s',;:)]*[^\s',;:).])|`[^`]+`)")
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 14, 38


@dataclass(frozen=True)
class Chart:
    """The title, axis labels and ranges of a chart.

    Args:
        x, y: (from, to), in the values' own units.
        percent: values along y are shares. whole_x: only whole numbers are labelled along x.
        log: y is logarithmic, and `y` must be positive.
    """

    title: str
    x_label: str
    y_label: str
    x: tuple[float, float]
    y: tuple[float, float]
    percent: bool = False
    whole_x: bool = False
    log: bool = False
    width: int = 520
    height: int = 240

    def px(self, value: float) -> float:
        """The horizontal pixel of a value."""
        low, high = self.x
        return round(_LEFT + (value - low) / ((high - low) or 1) * (self.width - _LEFT - _RIGHT), 1)

    def py(self, value: float) -> float:
        """The vertical pixel of a value."""
        low, high, value = (math.log10(v) for v in (*self.y, value)) if self.log else (*self.y, value)
        bottom = self.height - _BOTTOM
        return round(bottom - (value - low) / ((high - low) or 1) * (bottom - _TOP), 1)


def figure(chart: Chart, marks: Sequence[str], alt: str, key: Sequence[tuple[str, str]] = (), note: str = "") -> Markup:
    """The chart as HTML: its title, a key of (style class, name), axes, these marks and a note. alt: what it shows, in
    words, for those who cannot see it."""
    bottom, right, middle = chart.height - _BOTTOM, chart.width - _RIGHT, (chart.height - _BOTTOM + _TOP) / 2
    axes = []
    for tick in ticks(*chart.y, log=chart.log):
        y = chart.py(tick)
        axes.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
        axes.append(_text(_LEFT - 6, round(y + 4, 1), f"{tick:.0%}" if chart.percent else format_number(tick), "end"))
    for tick in ticks(*chart.x) if chart.x_label else ():
        if not chart.whole_x or math.isclose(tick, round(tick)):
            axes.append(_text(chart.px(tick), bottom + 15, format_number(tick)))
    axes.append(_text((_LEFT + right) / 2, chart.height - 6, chart.x_label))
    turned = f'<text x="12" y="{middle}" transform="rotate(-90 12 {middle})" text-anchor="middle">'
    keys = "".join(f'<span><i class="{style}"></i>{escape(name)}</span>' for style, name in key)
    alt = escape(f"{chart.title}. {alt}")
    return Markup(
        f'<figure><h3>{escape(chart.title)}</h3><div class="key">{keys}</div>'
        f'<svg viewBox="0 0 {chart.width} {chart.height}" role="img" aria-label="{alt}"><title>{alt}</title>'
        f"{''.join(axes)}{turned}{escape(chart.y_label)}</text>{''.join(marks)}</svg>"
        + (f'<p class="faint">{escape(note)}</p>' if note else "")
        + "</figure>\n"
    )


def bars(chart: Chart, edges: Sequence[float], heights: Sequence[float], style: str) -> list[str]:
    """A histogram."""
    spans = [(chart.px(low), max(0.5, chart.px(high) - chart.px(low) - 0.6)) for low, high in pairwise(edges)]
    return [_bar(chart, *span, height, style) for span, height in zip(spans, heights, strict=False)]


def grouped_bars(
    chart: Chart, rows: Sequence[Sequence[float]], names: Sequence[str], styles: Sequence[str]
) -> list[str]:
    """Bars side by side, labelled with their shares: rows[group][series]. `chart.x` must be (0, number of groups)."""
    marks = []
    for group, row in enumerate(rows):
        share = 0.76 / max(1, len(row))
        for series, height in enumerate(row):
            x = chart.px(group + 0.12 + series * share)
            width = chart.px(group + 0.12 + (series + 1) * share) - x - 1
            marks.append(_bar(chart, x, width, height, styles[series]))
            marks.append(_text(round(x + width / 2, 1), chart.py(height) - 3, f"{height:.0%}", style="value"))
        marks.append(_text(chart.px(group + 0.5), chart.height - _BOTTOM + 15, names[group]))
    return marks


def line(chart: Chart, points: Sequence[tuple[float, float]], style: str, dots: bool = True) -> list[str]:
    """A line through the finite points, each with a dot."""
    places = [(chart.px(x), chart.py(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    path = f'<path class="{style} stroke" d="M{"L".join(f"{x} {y}" for x, y in places)}"/>' if len(places) > 1 else ""
    return [path, *(f'<circle class="{style}" cx="{x}" cy="{y}" r="3"/>' for x, y in places if dots)]


def intervals(chart: Chart, spans: Sequence[tuple[float, float, float]], style: str) -> list[str]:
    """Vertical intervals: (x, low, high)."""
    return [
        f'<path class="{style} stroke thin" d="M{chart.px(x)} {chart.py(low)}V{chart.py(high)}"/>'
        for x, low, high in spans
        if math.isfinite(low)
    ]


def horizontal_rule(chart: Chart, value: float, name: str) -> list[str]:
    """A dashed line across, with its name."""
    y, right = chart.py(value), chart.width - _RIGHT
    return [f'<path class="mark" d="M{_LEFT} {y}H{right}"/>', _text(right - 2, y - 4, name, "end", "value")]


def vertical_rule(chart: Chart, value: float, name: str, end: bool = False) -> list[str]:
    """A dashed line up, with its name to the right of it (left with `end`); nothing where it lies outside."""
    if not chart.x[0] <= value <= chart.x[1]:
        return []
    x = chart.px(value)
    label = _text(x - 4, _TOP + 9, name, "end", "value") if end else _text(x + 4, _TOP + 9, name, "start", "value")
    return [f'<path class="mark" d="M{x} {_TOP}V{chart.height - _BOTTOM}"/>', label]


def data_range(values: Sequence[float], log: bool = False) -> tuple[float, float]:
    """The range that shows these values: whole powers of ten on a logarithmic axis, never empty."""
    low, high = min(values), max(values)
    if log:
        first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
        return 10.0**first, 10.0 ** max(last, first + 1)
    if high - low <= 1e-9 * max(1.0, abs(high)):
        return low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    return low, high


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Round values from low to high, three to seven of them."""
    if log:
        first, last = round(math.log10(low)), round(math.log10(high))
        return [10.0**power for power in range(first, last + 1, math.ceil((last - first) / 6))]
    if not high > low:
        return [low]
    rough = (high - low) / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def format_number(value: float) -> str:
    """A number as an axis or a sentence shows it."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.2g}"
    whole = abs(value) >= 100 or math.isclose(value, round(value), abs_tol=1e-9)
    return f"{value:,.0f}" if whole else f"{value:.3g}"


def render_page(package: str, template: str, **values: object) -> str:
    """A page from PACKAGE/templates/TEMPLATE, which may extend `page.html` beside this module; values are escaped."""
    loader = ChoiceLoader([PackageLoader(package), PackageLoader("polysem.training")])
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    return environment.get_template(template).render(values)


def mark_commands(advice: object) -> Markup:
    """Advice as HTML, with the options and commands that one would copy set as code."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", escape(str(advice), quote=False)))


def _bar(chart: Chart, x: float, width: float, height: float, style: str) -> str:
    y, base = chart.py(height), chart.py(chart.y[0])
    return f'<rect class="{style}" x="{x}" y="{y}" width="{width:.1f}" height="{max(0.0, base - y):.1f}"/>'


def _text(x: float, y: float, words: str, anchor: str = "middle", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
