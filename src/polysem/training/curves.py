"""Curves over steps as inline SVG, coloured by the page's own style so that they follow its light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import fmean

POINTS = 1000
"""Most points of a curve: a page is some 600 pixels wide."""
COLOURS = 8
"""Colours --c0 … that the page's style defines."""

_WIDTH, _HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 24, 10, 38
# More points than this are noise around a course: the course is drawn through its means.
_COURSE = 200

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """name: what it shows. points: (step, value); what is not finite is not drawn."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Axes:
    """A figure: curves on common axes. label: of the values. log: on a logarithmic axis, which leaves out 0.
    end: the last step of the run, so that figures side by side can be compared."""

    title: str
    label: str
    curves: tuple[Curve, ...]
    log: bool = False
    end: float = 0.0

    @property
    def drawn(self) -> tuple[Curve, ...]:
        """The curves with something to draw."""
        kept = (
            Curve(curve.name, tuple(p for p in curve.points if math.isfinite(p[1]) and (not self.log or p[1] > 0)))
            for curve in self.curves
        )
        return tuple(curve for curve in kept if curve.points)


def draw(axes: Axes) -> str:
    """The figure as HTML: a title, a key and an SVG with a text alternative."""
    curves = axes.drawn
    if not curves:
        return ""
    along, up = (
        _scale([0.0, axes.end, *(x for c in curves for x, _ in c.points)], False),
        _scale(_values(curves), axes.log),
    )
    marks = [*_grid(along, up, axes.label), *(_line(c, i, along, up) for i, c in enumerate(curves))]
    alt = f"{axes.title} over steps. " + " ".join(_said(curve) for curve in curves)
    keys = "".join(f'<span><i style="color: {_colour(i)}"></i>{escape(c.name)}</span>' for i, c in enumerate(curves))
    return (
        f'<figure><h2>{escape(axes.title)}</h2><div class="key">{keys}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(alt)}">'
        f"<title>{escape(alt)}</title>{''.join(marks)}</svg></figure>\n"
    )


def thinned(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most `most` points that keep every peak: of each stretch the lowest and the highest, and the ends."""
    if len(points) <= most:
        return list(points)
    stretches = max(1, most // 2 - 1)
    inner = points[1:-1]
    kept = [points[0]]
    for i in range(stretches):
        stretch = inner[i * len(inner) // stretches : (i + 1) * len(inner) // stretches]
        if stretch:
            ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
            kept += sorted(ends)
    return [*kept, points[-1]]


def course(points: Sequence[Point], most: int = _COURSE) -> list[Point]:
    """The means of `most` stretches: where a noisy curve goes."""
    cuts = [i * len(points) // most for i in range(most + 1)]
    return [
        (points[(first + last - 1) // 2][0], fmean(value for _, value in points[first:last]))
        for first, last in pairwise(cuts)
        if last > first
    ]


@dataclass(frozen=True)
class _Scale:
    """Values to the unit interval, and the values to label."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        return ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)


def _values(curves: Sequence[Curve]) -> list[float]:
    return [value for curve in curves for _, value in curve.points]


def _scale(values: Sequence[float], log: bool) -> _Scale:
    low, high = min(values), max(values)
    if log:
        low, high = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
        high = max(high, low + 1)
        every = math.ceil((high - low) / 6)
        return _Scale(low, high, True, tuple(10.0**e for e in range(int(low), int(high) + 1, every)))
    if high - low <= 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return _Scale(low, high, False, tuple(step * i for i in range(first, last + 1)))


def _grid(along: _Scale, up: _Scale, label: str) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    marks = []
    for tick in up.ticks:
        y = _y(up(tick))
        marks.append(f'<path d="M{_LEFT} {y}H{right}" stroke="var(--line)" stroke-width="1"/>')
        marks.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for tick in along.ticks:
        marks.append(f'<text x="{_x(along(tick))}" y="{bottom + 16}" text-anchor="middle">{_number(tick)}</text>')
    middle = (_TOP + bottom) / 2
    marks.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>')
    turned = f'transform="rotate(-90 12 {middle})"'
    marks.append(f'<text x="12" y="{middle}" {turned} text-anchor="middle">{escape(label)}</text>')
    return marks


def _line(curve: Curve, i: int, along: _Scale, up: _Scale) -> str:
    def path(points: Sequence[Point], opacity: float) -> str:
        placed = "L".join(f"{_x(along(x))} {_y(up(y))}" for x, y in points)
        dashes = ' stroke-dasharray="5 3"' if i >= COLOURS else ""
        stroke = f'stroke="{_colour(i)}" stroke-width="1.5" stroke-opacity="{opacity}" stroke-linejoin="round"'
        return f'<path d="M{placed}" fill="none" {stroke}{dashes}/>'

    if len(curve.points) > _COURSE:
        return path(thinned(curve.points), 0.3) + path(course(curve.points), 1)
    # A few measurements, such as validations, are shown one by one.
    few = curve.points if len(curve.points) <= 60 else ()
    dots = (f'<circle cx="{_x(along(x))}" cy="{_y(up(y))}" r="2.5" fill="{_colour(i)}"/>' for x, y in few)
    return path(curve.points, 1) + "".join(dots)


def _colour(i: int) -> str:
    return f"var(--c{i % COLOURS})"


def _x(share: float) -> float:
    return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(share: float) -> float:
    return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def _said(curve: Curve) -> str:
    (_, first), (last_step, last) = curve.points[0], curve.points[-1]
    return f"{curve.name}: from {_number(first)} to {_number(last)} at step {last_step:.0f}."


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"
