"""Small charts as inline SVG, coloured by the page's own style so that they follow its light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 460, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 40


@dataclass(frozen=True)
class Frame:
    """A figure's words and ranges. x, y: from, to. percent: the values along y are shares."""

    title: str
    along: str
    up: str
    x: tuple[float, float]
    y: tuple[float, float]
    percent: bool = False
    whole_x: bool = False

    def px(self, value: float) -> float:
        low, high = self.x
        return round(_LEFT + (value - low) / ((high - low) or 1) * (_WIDTH - _LEFT - _RIGHT), 1)

    def py(self, value: float) -> float:
        low, high = self.y
        return round(_HEIGHT - _BOTTOM - (value - low) / ((high - low) or 1) * (_HEIGHT - _TOP - _BOTTOM), 1)


def figure(frame: Frame, marks: Sequence[str], said: str, key: Sequence[tuple[str, str]] = (), note: str = "") -> str:
    """A figure with a title, a key of (style class, name), axes and these marks. said: the text alternative."""
    keys = "".join(f'<span><i class="{style}"></i>{escape(name)}</span>' for style, name in key)
    below = f'<p class="faint">{escape(note)}</p>' if note else ""
    alt = f"{frame.title}. {said}"
    return (
        f'<figure><h3>{escape(frame.title)}</h3><div class="key">{keys}</div><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{escape(alt)}">{_axes(frame)}{"".join(marks)}</svg>{below}</figure>'
    )


def bars(frame: Frame, edges: Sequence[float], heights: Sequence[float], style: str) -> list[str]:
    """A histogram."""
    base = frame.py(frame.y[0])
    return [
        f'<rect class="{style}" x="{frame.px(low)}" y="{frame.py(height)}" '
        f'width="{max(0.5, frame.px(high) - frame.px(low) - 0.6):.1f}" '
        f'height="{max(0.0, base - frame.py(height)):.1f}"/>'
        for low, high, height in zip(edges, edges[1:], heights, strict=False)
    ]


def groups(frame: Frame, rows: Sequence[Sequence[float]], names: Sequence[str], styles: Sequence[str]) -> list[str]:
    """Bars side by side: rows[group][series]. frame.x must be (0, number of groups)."""
    base, marks = frame.py(frame.y[0]), []
    for place, row in enumerate(rows):
        wide = 0.76 / max(1, len(row))
        for number, height in enumerate(row):
            x = frame.px(place + 0.12 + number * wide)
            y = frame.py(height)
            width = frame.px(place + 0.12 + (number + 1) * wide) - x - 1
            marks.append(
                f'<rect class="{styles[number]}" x="{x}" y="{y}" width="{width:.1f}" height="{base - y:.1f}"/>'
                f'<text class="value" x="{x + width / 2:.1f}" y="{y - 3:.1f}" text-anchor="middle">{height:.0%}</text>'
            )
        marks.append(
            f'<text x="{frame.px(place + 0.5)}" y="{base + 15}" text-anchor="middle">{escape(names[place])}</text>'
        )
    return marks


def line(frame: Frame, points: Sequence[tuple[float, float]], style: str, dots: bool = True) -> list[str]:
    placed = [(frame.px(x), frame.py(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    path = f'<path class="{style} stroke" d="M{"L".join(f"{x} {y}" for x, y in placed)}"/>' if len(placed) > 1 else ""
    return [path, *(f'<circle class="{style}" cx="{x}" cy="{y}" r="3.5"/>' for x, y in placed if dots)]


def whiskers(frame: Frame, spans: Sequence[tuple[float, float, float]], style: str) -> list[str]:
    """Intervals: (x, low, high)."""
    return [
        f'<path class="{style} stroke thin" d="M{frame.px(x)} {frame.py(low)}V{frame.py(high)}"/>'
        for x, low, high in spans
        if math.isfinite(low)
    ]


def level(frame: Frame, value: float, name: str) -> list[str]:
    """A dashed line across, with its name."""
    y = frame.py(value)
    return [
        f'<path class="mark" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>',
        f'<text class="value" x="{_WIDTH - _RIGHT - 2}" y="{y - 4}" text-anchor="end">{escape(name)}</text>',
    ]


def upright(frame: Frame, value: float, name: str, end: bool = False) -> list[str]:
    """A dashed line up, with its name to the right of it (left with `end`)."""
    if not frame.x[0] <= value <= frame.x[1]:
        return []
    x = frame.px(value)
    anchor, shift = ("end", -4) if end else ("start", 4)
    return [
        f'<path class="mark" d="M{x} {_TOP}V{_HEIGHT - _BOTTOM}"/>',
        f'<text class="value" x="{x + shift}" y="{_TOP + 9}" text-anchor="{anchor}">{escape(name)}</text>',
    ]


def _axes(frame: Frame) -> str:
    bottom, right, middle = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, (_HEIGHT - _BOTTOM + _TOP) / 2
    found = []
    for tick in ticks(*frame.y):
        y = frame.py(tick)
        text = f"{tick:.0%}" if frame.percent else number(tick)
        found.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
        found.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for tick in ticks(*frame.x) if frame.along else ():
        if not frame.whole_x or tick == round(tick):
            found.append(f'<text x="{frame.px(tick)}" y="{bottom + 15}" text-anchor="middle">{number(tick)}</text>')
    found.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(frame.along)}</text>')
    found.append(
        f'<text x="12" y="{middle}" transform="rotate(-90 12 {middle})" text-anchor="middle">{escape(frame.up)}</text>'
    )
    return "".join(found)


def ticks(low: float, high: float) -> list[float]:
    """Round values from low to high, four or five of them."""
    if not high > low:
        return [low]
    rough = (high - low) / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * i, 10) for i in range(first, last + 1)]


def number(value: float) -> str:
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
