"""The results of a sweep: the figures of every run, the mean over seeds for each combination of values, and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill
from typing import Any

from polysem import atomic_write, models
from polysem.data.collection import Collection
from polysem.errors import unknown
from polysem.evaluation import Protocol, evaluate
from polysem.progress import Progress
from polysem.recipes import Recipe, parse
from polysem.training.build import learns_labels
from polysem.training.feature_cache import cache_both_sides
from polysem.training.run_folder import flatten_numbers, is_number, read_json
from polysem.training.sweep.plan import canonical_text, format_value, format_values
from polysem.training.validation import NDCG_DEPTH

_RECALLS = [f"{way}.r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
_BY_LABELS = [f"{way}.{name}" for name in (f"ndcg{NDCG_DEPTH}", "map") for way in ("i2t", "t2i")]

# Distinct also for those who cannot tell red from green.
COLOURS = ("#2563b0", "#c2571a", "#2d8544", "#9a3fa0", "#8a6d00", "#157a80", "#b0303c", "#4d6570")
STYLES = {"t2i": ("-", "text to image"), "i2t": (":", "image to text")}
SPAN = 20.0
"""Largest over smallest value (but for 0) from which on the axis is logarithmic."""


@dataclass(frozen=True)
class SweepRun:
    """A training run of a sweep.

    Args:
        status: "finished", or what stopped it; error: in its own words.
        seconds: of training.
        figures: by path, such as "i2t.ndcg50".
        protocol: the stamp that they were measured under.
    """

    values: Mapping[str, Any]
    seed: int
    folder: str
    status: str
    seconds: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)
    protocol: str = ""
    error: str = ""


@dataclass(frozen=True)
class SweepRow:
    """A combination of values. means, spreads: of each metric over the finished runs; the spread is the standard
    deviation of a sample, None of a single run."""

    values: Mapping[str, Any]
    runs: tuple[SweepRun, ...]
    means: dict[str, float]
    spreads: dict[str, float | None]

    @property
    def finished(self) -> tuple[SweepRun, ...]:
        return tuple(run for run in self.runs if run.status == "finished")


@dataclass(frozen=True)
class Sweep:
    """All runs of a sweep. metrics: those of table and plot."""

    recipe: str
    data: str
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    runs: tuple[SweepRun, ...]
    out: Path

    @property
    def rows(self) -> list[SweepRow]:
        by_values: dict[str, list[SweepRun]] = {}
        for run in self.runs:
            by_values.setdefault(canonical_text(dict(run.values)), []).append(run)
        rows = []
        for runs in by_values.values():
            row = SweepRow(runs[0].values, tuple(runs), {}, {})
            for metric in self.metrics:
                values = [run.figures[metric] for run in row.finished if metric in run.figures]
                if values:
                    row.means[metric] = fmean(values)
                    row.spreads[metric] = stdev(values) if len(values) > 1 else None
            rows.append(row)
        return rows

    @property
    def failed(self) -> list[SweepRun]:
        return [run for run in self.runs if run.error]

    @property
    def protocols(self) -> list[str]:
        """The stamps of the figures: one, unless a swept key changes what is measured on."""
        return list(dict.fromkeys(run.protocol for run in self.runs if run.protocol))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "recipe": self.recipe,
            "data": self.data,
            "keys": list(self.keys),
            "metrics": list(self.metrics),
            "protocol": " | ".join(self.protocols),
            "seconds": round(sum(run.seconds for run in self.runs), 1),
            "table": [
                {"values": row.values, "seeds": [r.seed for r in row.finished], "mean": row.means, "std": row.spreads}
                for row in self.rows
            ],
            "runs": [asdict(run) for run in self.runs],
        }


def validation_figures(best: Mapping[str, Any]) -> dict[str, float]:
    """The validation of a run's best weights by the paths that protocols use: rsum, i2t.ndcg50, micro_f1.text."""
    measured = {name: value for name, value in best.items() if name not in ("labels", "step", "epoch")}
    figures = flatten_numbers(measured, ".")
    for name, values in best.get("labels", {}).items():
        by_side = name == "micro_f1"
        figures |= {f"{name}.{way}" if by_side else f"{way}.{name}": value for way, value in values.items()}
    return figures


def default_metrics(recipes: Sequence[Recipe], figures: Mapping[str, float] | None = None) -> tuple[str, ...]:
    """What picks the checkpoint: NDCG both ways if labels are learned, else RSUM. figures: what a protocol measured, if
    not the validation; then NDCG at the depth that it has."""
    if all(learns_labels(recipe) for recipe in recipes):
        known = _BY_LABELS if figures is None else list(figures)
        both = tuple(name for name in known if name.startswith(("i2t.ndcg", "t2i.ndcg")))
        if both:
            return both
    if figures is None or "rsum" in figures:
        return ("rsum",)
    return (next(iter(figures)),)


def check_validation_metrics(asked: Sequence[str], recipes: Sequence[Recipe]) -> None:
    """Raise for a metric that no validation will have, before anything is trained."""
    known = ["rsum", *_RECALLS, "log_variance.image", "log_variance.text"]
    if any(learns_labels(recipe) for recipe in recipes):
        known += [*_BY_LABELS, "micro_f1.image", "micro_f1.text"]
    check_metrics(asked, known, "of the validation; with --protocol there are more")


def check_metrics(asked: Sequence[str], known: Sequence[str], what: str) -> None:
    for metric in asked:
        if metric not in known:
            raise unknown(f"--metric ({what})", metric, known)


def measure_run(
    run: Path,
    about: Mapping[str, Any],
    collection: Collection,
    protocol: Protocol | None,
    split: str,
    stores: Mapping[str, Any],
    progress: Progress,
) -> tuple[dict[str, float], str]:
    """The figures of a finished run by path, and their stamp; measured once and kept beside the run.

    Args:
        about: the run's run.json.
        protocol: None takes the validation that the run has made of itself.
        stores: `features` and `text_features` as for `train`, completed with those of this split: encoders that never
            change run once for all runs.
    """
    if protocol is None:
        return validation_figures(about.get("best") or {}), str(about.get("protocol", ""))
    weights = run / "model.safetensors"
    version = [weights.stat().st_size, weights.stat().st_mtime_ns] if weights.is_file() else []
    asked = {"protocol": repr(protocol), "split": split, "weights": version}
    path = run.with_name(f"{run.name}.{protocol.name}.json")
    kept = read_json(path)
    if kept.get("asked") != asked:
        part = collection
        if split == "val" and not part.has_splits:
            part = part.hold_out()[0]
        elif split != "all":
            part = part.split(split)
        part = part.where([i for i, item in enumerate(part) if item.captions])

        def report(what: str, done: int, total: int, /) -> None:
            progress(f"features of {what}", done, total)

        model, recipe = models.load(run), parse(about["recipe"])
        encoders = model.image.encoder, model.text.encoder
        caches = cache_both_sides(part, encoders, recipe, list(stores.values()), report)
        folders: list[Any] = [None if cache is None else cache.folder for cache in caches]
        settings = {**dict(zip(stores, folders, strict=True)), "intervals": False, "progress": progress}
        result = evaluate(model, collection, protocol=protocol, split=split, **settings)
        kept = {"asked": asked, **result.as_dict(), "model": run.name}
        atomic_write.write_text(path, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    return {name: value for name, value in kept["metrics"].items() if is_number(value)}, kept["protocol"]["stamp"]


def save_plot(result: Sweep, path: Path) -> None:
    """How metrics go with the values of a key, as figure 3 of label-wise semantic sharing's supplement.

    The first key goes along the axis; the others make the lines. Both ways of a metric share a panel, text to image
    solid and image to text dotted. Bars: the standard deviation over the seeds.
    """
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
    known = {canonical_text(value): value for value in values}
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
                (places[canonical_text(row.values[keys[0]])], row.means[metric], row.spreads[metric] or 0.0)
                for row in members
                if metric in row.means
            )
            if not drawn:
                continue
            at, mean, spread = zip(*drawn, strict=True)
            label = ", ".join(filter(None, (line, way))) or None
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": style, "marker": "o", "markersize": 4}
            axes.errorbar(at, mean, yerr=spread if any(spread) else None, capsize=3, label=label, **look)
