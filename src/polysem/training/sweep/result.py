"""The results of a sweep: the figures of every run, and for each combination of values the mean over its seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from polysem import atomic_write, models
from polysem.data.collection import Collection
from polysem.errors import unknown
from polysem.evaluation import Protocol, evaluate
from polysem.models import Model
from polysem.progress import Progress
from polysem.recipes import Recipe
from polysem.training.build import learns_labels
from polysem.training.feature_cache import cache_both_sides
from polysem.training.run_folder import flatten_numbers, read_json
from polysem.training.sweep.plan import canonical
from polysem.training.validation import NDCG_DEPTH

_RECALLS = [f"{way}.r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
_BY_LABELS = [f"{way}.{name}" for name in (f"ndcg{NDCG_DEPTH}", "map") for way in ("i2t", "t2i")]


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
            by_values.setdefault(canonical(dict(run.values)), []).append(run)
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
                {
                    "values": dict(row.values),
                    "seeds": [run.seed for run in row.finished],
                    "mean": dict(row.means),
                    "std": dict(row.spreads),
                }
                for row in self.rows
            ],
            "runs": [asdict(run) for run in self.runs],
        }


def validation_figures(best: Mapping[str, Any]) -> dict[str, float]:
    """The validation of a run's best weights by the paths that protocols use: rsum, i2t.ndcg50, micro_f1.text."""
    figures = {name: value for name, value in best.items() if name not in ("labels", "step", "epoch")}
    for name, values in best.get("labels", {}).items():
        if name == "micro_f1":
            figures[name] = values
        else:
            for way, value in values.items():
                figures[way] = {**figures.get(way, {}), name: value}
    return flatten_numbers(figures, ".")


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


@dataclass(frozen=True, eq=False)
class SweepEvaluation:
    """How the figures of each run are measured.

    Args:
        protocol: None takes the validation that each run has made of itself.
        split: of the collection.
        stores: `features` and `text_features` as for `train`, completed with those of this split.
    """

    collection: Collection
    protocol: Protocol | None = None
    split: str | None = None
    stores: Mapping[str, Any] = field(default_factory=dict)

    def measure(
        self, run: Path, about: Mapping[str, Any], recipe: Recipe, progress: Progress
    ) -> tuple[dict[str, float], str]:
        """The figures of a finished run by path, and their stamp; measured once and kept beside the run.

        Args:
            about: the run's run.json.
        """
        if self.protocol is None:
            return validation_figures(about.get("best") or {}), str(about.get("protocol", ""))
        weights = run / "model.safetensors"
        version = [weights.stat().st_size, weights.stat().st_mtime_ns] if weights.is_file() else []
        asked = {"protocol": repr(self.protocol), "split": self._split, "weights": version}
        path = run.with_name(f"{run.name}.{self.protocol.name}.json")
        kept = read_json(path)
        if kept.get("asked") != asked:
            model = models.load(run)
            settings = {**self._cache_features(model, recipe, progress), "intervals": False, "progress": progress}
            result = evaluate(model, self.collection, protocol=self.protocol, split=self._split, **settings)
            kept = {"asked": asked, **result.as_dict(), "model": run.name}
            atomic_write.write_text(path, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
        numbers = {name: value for name, value in kept["metrics"].items() if isinstance(value, (int, float))}
        return numbers, str(kept["protocol"]["stamp"])

    @property
    def _split(self) -> str:
        """The one asked for; else test, or whatever was not trained on."""
        if not self.collection.has_splits:
            return self.split or "val"
        there = [name for name in ("test", "val", *self.collection.splits) if name in self.collection.splits]
        return self.split or there[0]

    def _cache_features(self, model: Model, recipe: Recipe, progress: Progress) -> dict[str, Any]:
        """Encoders that never change run once for all runs, here as in training."""
        part = self.collection
        if self._split == "val" and not part.has_splits:
            part = part.hold_out()[0]
        elif self._split != "all":
            part = part.split(self._split)
        part = part.where([i for i, item in enumerate(part) if item.captions])

        def report(what: str, done: int, total: int, /) -> None:
            progress(f"features of {what}", done, total)

        encoders = model.image.encoder, model.text.encoder
        images, texts = cache_both_sides(part, encoders, recipe, list(self.stores.values()), report)
        return {"features": images and images.folder, "text_features": texts and texts.folder}
