"""The map as a picture, for papers and notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from polysem.inspection.map.colours import LIGHT
from polysem.inspection.map.layout import Map

_MARKS = {"image": "o", "text": "^"}


def save(found: Map, path: Path, title: str, colour: str) -> None:
    """Write a .png, .svg or .pdf: colours tell the slot (or label), shapes the modality."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 7.0), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    for spine in axes.spines.values():
        spine.set_color("#c8c8c8")
    _lines(axes, found)
    kinds, names = classes(found, colour)
    sides = np.array([item.side for item in found.items])[found.item]
    size = float(np.clip(30_000 / max(1, len(found.positions)), 4, 36))
    # In random order, so that what is drawn last does not cover all the rest.
    order = np.random.default_rng(0).permutation(len(found.positions))
    for part in np.array_split(order, max(1, min(40, len(order) // 50))):
        for side, mark in _MARKS.items():
            rows = part[sides[part] == side]
            axes.scatter(
                found.positions[rows, 0],
                found.positions[rows, 1],
                s=size,
                marker=mark,
                c=[LIGHT[kind % len(LIGHT)] for kind in kinds[rows]],
                alpha=0.75,
                linewidths=0,
            )
    _legend(axes, names, [side for side in _MARKS if bool((sides == side).any())])
    figure.text(0.01, -0.01, "\n".join(found.notes), fontsize=7, color="#555555", va="top", wrap=True)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.15)


def classes(found: Map, colour: str) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[str]]:
    """(m,) the colour of each element, and what the colours are called."""
    if colour == "slot":
        return found.slot, [f"element {number + 1}" for number in range(found.slots)]
    number = {label: place for place, label in enumerate(found.labels)}
    return np.array([number[str(item.label)] for item in found.items], np.int64)[found.item], list(found.labels)


def _lines(axes: Any, found: Map) -> None:
    if len(found.lines):
        from matplotlib.collections import LineCollection

        axes.add_collection(
            LineCollection(list(found.positions[found.lines]), colors="#808080", linewidths=0.4, alpha=0.35)
        )


def _legend(axes: Any, names: list[str], sides: list[str]) -> None:
    from matplotlib.lines import Line2D

    def handle(mark: str, colour: str, label: str) -> Line2D:
        return Line2D([], [], linestyle="", marker=mark, markersize=6, color=colour, label=label)

    handles = [handle("s", LIGHT[place % len(LIGHT)], name) for place, name in enumerate(names)]
    handles += [handle(_MARKS[side], "#444444", f"{side}s") for side in sides]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
