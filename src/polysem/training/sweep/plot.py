"""sweep.png: how a metric goes with the values of a key, as figure 3 of label-wise semantic sharing's supplement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from polysem import atomic_write
from polysem.training.run_folder import is_number
from polysem.training.sweep.plan import canonical, format_value, format_values
from polysem.training.sweep.result import Sweep, SweepRow

# Distinct also for those who cannot tell red from green.
COLOURS = ("#2563b0", "#c2571a", "#2d8544", "#9a3fa0", "#8a6d00", "#157a80", "#b0303c", "#4d6570")
STYLES = {"t2i": ("-", "text to image"), "i2t": (":", "image to text")}
SPAN = 20.0
"""Largest over smallest value (but for 0) from which on the axis is logarithmic."""


def save_plot(result: Sweep, path: Path) -> None:
    """The first key goes along the axis; the others make the lines. Both ways of a metric share a panel, text to image
    solid and image to text dotted. Bars: the standard deviation over the seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in result.rows if row.means]
    if not rows:
        return
    panels: dict[str, list[str]] = {}
    for metric in result.metrics:
        way, dot, rest = metric.partition(".")
        panels.setdefault(rest if dot and way in STYLES else metric, []).append(metric)
    figure = Figure(figsize=(1.2 + 5.4 * len(panels), 4.4), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    places, ticks, scale = positions([row.values[result.keys[0]] for row in result.rows])
    for number, (title, metrics) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        _draw(axes, rows, result.keys, metrics, places)
        if scale is not None:
            axes.set_xscale("symlog", linthresh=scale, linscale=0.5)
            axes.minorticks_off()
        axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks])
        axes.set_xlabel(result.keys[0])
        axes.set_title(title, loc="left", fontsize=11)
        axes.grid(color="#e2e5e8", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    seeds = sorted({run.seed for row in rows for run in row.finished})
    how = " | ".join(result.protocols)
    note = f"{result.recipe} on {result.data}; {len(seeds)} seed{'s' if len(seeds) > 1 else ''}. {how}"
    figure.supxlabel(fill(note, 72 * len(panels)), fontsize=7, color="#555555", x=0.01, ha="left")
    with atomic_write.replace_file(path) as partial:
        figure.savefig(partial, format="png")


def positions(values: Sequence[Any]) -> tuple[dict[str, float], list[tuple[float, str]], float | None]:
    """Where each value stands, the ticks, and the smallest size of a logarithmic axis (None: a linear one).

    Numbers stand at their own place, and so does 0 on a logarithmic axis; other values side by side.
    """
    known = {canonical(value): value for value in values}
    numeric = all(map(is_number, known.values()))
    places = {key: float(value if numeric else number) for number, (key, value) in enumerate(known.items())}
    sizes = [abs(place) for place in places.values() if place]
    spread = numeric and bool(sizes) and max(sizes) >= SPAN * min(sizes)
    return places, [(places[key], format_value(value)) for key, value in known.items()], min(sizes) if spread else None


def _draw(
    axes: Any, rows: Sequence[SweepRow], keys: Sequence[str], metrics: Sequence[str], places: Mapping[str, float]
) -> None:
    lines: dict[str, list[SweepRow]] = {}
    for row in rows:
        lines.setdefault(format_values({key: row.values[key] for key in keys[1:]}), []).append(row)
    for number, (line, members) in enumerate(lines.items()):
        for metric in metrics:
            style, way = STYLES.get(metric.partition(".")[0], ("-", ""))
            drawn = sorted(
                (places[canonical(row.values[keys[0]])], row.means[metric], row.spreads[metric] or 0.0)
                for row in members
                if metric in row.means
            )
            if not drawn:
                continue
            at, mean, spread = zip(*drawn, strict=True)
            label = ", ".join(filter(None, (line, way))) or None
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": style, "marker": "o", "markersize": 4}
            axes.errorbar(at, mean, yerr=spread if any(spread) else None, capsize=3, label=label, **look)
