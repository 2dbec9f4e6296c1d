"""The figures of docs/benchmarks/results.md, drawn from results.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from results_rows import TABLES

COLOURS = ("#2563b0", "#c2571a", "#2d8544", "#7b3fa0", "#b0303c", "#4d6570")
INK, FAINT = "#1b1f24", "#8a929a"
CURVES = ("long-adopt", "long-triplet")
KEPT = {"vse-2ad": "annealed", "adopt-printed": "Eq. 6 as printed", "adopt-official": "released formula"}


def draw(entry: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Every figure whose runs are there: its name, and the file's name."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, figure in (("differences", _differences), ("convergence", _convergence), ("sets", _sets)):
        drawn = figure(entry["rows"])
        if drawn is not None:
            made[name] = f"results-efficientnet-{name}.png"
            drawn.savefig(folder / made[name])
    return made


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(color="#e2e5e8", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _differences(rows: Mapping[str, Any]) -> Figure | None:
    """Methods against VSE∞: RSUM with its interval."""
    reference = TABLES["methods"].reference
    shown = [(row["label"], row["against"][reference]) for row in rows.values() if _against(row, reference)]
    if not shown:
        return None
    shown.sort(key=lambda pair: pair[1]["mean"])
    figure = new_figure(8.0, 0.34 * len(shown) + 1.2)
    axes = figure.add_subplot()
    for place, (_, apart) in enumerate(shown):
        low, high = apart["interval"] or (apart["mean"], apart["mean"])
        clear = low > 0 or high < 0
        colour = FAINT if not clear else COLOURS[2] if low > 0 else COLOURS[4]
        axes.plot([low, high], [place, place], color=colour, linewidth=2)
        axes.plot([apart["mean"]], [place], "o", color=colour, markersize=6)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(shown)), [label for label, _ in shown])
    axes.set_xlabel(f"RSUM minus that of {rows[reference]['label']}, 95 % interval")
    tidy(axes, "Methods")
    return figure


def _against(row: Mapping[str, Any], reference: str) -> bool:
    return "methods" in row["groups"] and reference in row.get("against", {})


def _convergence(rows: Mapping[str, Any]) -> Figure | None:
    """RSUM of every validation, and how many negatives AdOpt keeps."""
    curves = {rows[name]["label"]: _validations(rows[name]) for name in CURVES if name in rows}
    kept = {label: _negatives(rows[name]) for name, label in KEPT.items() if name in rows}
    kept = {label: curve for label, curve in kept.items() if curve}
    if not any(curves.values()):
        return None
    figure = new_figure(10.0, 4.0)
    left, right = figure.subplots(1, 2)
    for (label, points), colour in zip(curves.items(), COLOURS, strict=False):
        steps = [step for step, _ in points]
        means = [fmean(values) for _, values in points]
        spreads = [stdev(values) if len(values) > 1 else 0.0 for _, values in points]
        left.errorbar(steps, means, yerr=spreads, marker="o", markersize=4, capsize=2, color=colour, label=label)
    left.set_xlabel("step")
    left.set_ylabel("RSUM, val")
    tidy(left, "AdPool under AdOpt and under triplets")
    for (label, curve), colour in zip(kept.items(), COLOURS, strict=False):
        right.plot([(place + 0.5) / len(curve) for place in range(len(curve))], curve, color=colour, label=label)
    right.set_xlabel("share of training")
    right.set_ylabel("negatives of a caption")
    right.set_yscale("log")
    tidy(right, "Negatives that AdOpt keeps")
    for axes in (left, right):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    return figure


def _validations(row: Mapping[str, Any]) -> list[tuple[int, list[float]]]:
    """By step: RSUM of every seed."""
    found: dict[int, list[float]] = {}
    for cell in row["runs"]:
        for each in cell["validations"]:
            found.setdefault(each["step"], []).append(each["rsum"])
    return sorted(found.items())


def _negatives(row: Mapping[str, Any]) -> list[float]:
    curves: Sequence[Sequence[float]] = [
        cell["negatives"]["t2i"]["curve"] for cell in row["runs"] if "negatives" in cell
    ]
    return [fmean(values) for values in zip(*curves, strict=True)] if curves else []


def _sets(rows: Mapping[str, Any]) -> Figure | None:
    """Do sets that spread retrieve better?"""
    shown = [row for row in rows.values() if "log_variance" in row and row["mean"] and not row["ensemble"]]
    if len(shown) < 2:
        return None
    figure = new_figure(7.6, 5.0)
    axes = figure.add_subplot()
    for place, row in enumerate(shown):
        x, y = row["log_variance"][0], row["mean"]["rsum"][0]
        axes.plot([x], [y], "o", color=COLOURS[place % len(COLOURS)], markersize=6)
        axes.annotate(row["label"], (x, y), xytext=(5, 3), textcoords="offset points", fontsize=7)
    axes.set_xlabel("log circular variance within sets, mean of images and texts")
    axes.set_ylabel("RSUM, val")
    tidy(axes, "Spread of the sets and retrieval")
    return figure
