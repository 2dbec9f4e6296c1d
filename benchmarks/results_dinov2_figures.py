"""The figures of the first half of docs/benchmarks/results.md, drawn from results-dinov2.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from results_figures import COLOURS, FAINT, INK, new_figure, tidy

SHOWN = {
    "rsum": "RSUM",
    "i2t.map_at_r": "mAP@R of an image's captions",
    "nouns.map": "mAP of nouns",
    "phrases.map": "mAP of phrases",
}
MINUS = {"twin": "its K = 1 twin", "equal_bytes": "one vector of its bytes"}


def draw(entry: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Every figure whose runs are there: its name, and the file's name."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, figure in (("sets", _sets(entry["rows"])), ("search", _search(entry["search"]))):
        if figure is not None:
            made[name] = f"results-dinov2-{name}.png"
            figure.savefig(folder / made[name])
    return made


def _sets(rows: Mapping[str, Any]) -> Figure | None:
    """Sets against single vectors, by several figures."""
    lines = [
        (f"{row['label']} − {title}", row[role]["against"])
        for row in rows.values()
        for role, title in MINUS.items()
        if role in row
    ][::-1]
    if not lines:
        return None
    figure = new_figure(13.0, 0.3 * len(lines) + 1.2)
    for number, (axes, (metric, title)) in enumerate(zip(figure.subplots(1, len(SHOWN)), SHOWN.items(), strict=True)):
        for place, (_, against) in enumerate(lines):
            if metric in against:
                _interval(axes, place, against[metric])
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(
            range(len(lines)), [label for label, _ in lines] if number == 0 else [""] * len(lines), fontsize=7
        )
        tidy(axes, title)
    return figure


def _interval(axes: Any, place: int, apart: Mapping[str, Any]) -> None:
    low, high = apart["interval"] or (apart["mean"], apart["mean"])
    colour = FAINT if low <= 0 <= high else COLOURS[2] if low > 0 else COLOURS[4]
    axes.plot([low, high], [place, place], color=colour, linewidth=2)
    axes.plot([apart["mean"]], [place], "o", color=colour, markersize=5)


def _search(found: Mapping[str, Any]) -> Figure | None:
    """Does more training help? RSUM of the held-out tenth at the chosen rate and dropout."""
    curves = {}
    for each in found.values():
        if chosen := each["chosen"]:
            same = [t for t in each["trials"] if (t["rate"], t["dropout"]) == (chosen["rate"], chosen["dropout"])]
            points = sorted((t["epochs"], t["rsum"]) for t in same if t["rsum"] is not None)
            if len(points) > 1:
                curves[each["label"]] = points
    if not curves:
        return None
    figure = new_figure(8.0, 4.5)
    axes = figure.add_subplot()
    for place, (label, points) in enumerate(curves.items()):
        style = "-" if place < len(COLOURS) else "--" if place < 2 * len(COLOURS) else ":"
        axes.plot(
            *zip(*points, strict=True),
            style,
            marker="o",
            markersize=4,
            color=COLOURS[place % len(COLOURS)],
            label=label,
        )
    axes.set_xlabel("epochs")
    axes.set_ylabel("RSUM of the held-out tenth of train")
    axes.legend(frameon=False, fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
    tidy(axes, "More epochs")
    return figure
