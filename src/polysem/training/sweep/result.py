"""What a sweep found: every run, and for each combination of values the mean over its seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from polysem.errors import unknown
from polysem.recipes import Recipe
from polysem.training.labels import learns_labels
from polysem.training.sweep.parse import canonical
from polysem.training.validation import CUT

_RECALLS = [f"{way}.r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
_BY_LABELS = [f"{way}.{name}" for name in (f"ndcg{CUT}", "map") for way in ("i2t", "t2i")]


@dataclass(frozen=True)
class Run:
    """status: "finished", or what stopped it; error: in its own words. figures: by path, such as "i2t.ndcg50".
    protocol: the stamp that they were measured under. seconds: of training."""

    values: Mapping[str, Any]
    seed: int
    folder: str
    status: str
    seconds: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)
    protocol: str = ""
    error: str = ""


@dataclass(frozen=True)
class Row:
    """A combination of values. means, spreads: of each metric over the finished runs; the spread is the standard
    deviation of a sample, None of a single run."""

    values: Mapping[str, Any]
    runs: tuple[Run, ...]
    means: Mapping[str, float]
    spreads: Mapping[str, float | None]

    @property
    def finished(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.status == "finished")


@dataclass(frozen=True)
class Sweep:
    """metrics: those of table and picture."""

    recipe: str
    data: str
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    runs: tuple[Run, ...]
    out: Path

    @property
    def rows(self) -> list[Row]:
        by_values: dict[str, list[Run]] = {}
        for run in self.runs:
            by_values.setdefault(canonical(dict(run.values)), []).append(run)
        return [_row(runs, self.metrics) for runs in by_values.values()]

    @property
    def failed(self) -> list[Run]:
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


def _row(runs: Sequence[Run], metrics: Sequence[str]) -> Row:
    done = [run for run in runs if run.status == "finished"]
    means, spreads = dict[str, float](), dict[str, float | None]()
    for metric in metrics:
        found = [run.figures[metric] for run in done if metric in run.figures]
        if found:
            means[metric], spreads[metric] = fmean(found), stdev(found) if len(found) > 1 else None
    return Row(runs[0].values, tuple(runs), means, spreads)


# ------------------------------------------------------------------------------------------------------------ figures


def of_validation(best: Mapping[str, Any]) -> dict[str, float]:
    """The validation of a run's best weights by the paths that protocols use: rsum, i2t.ndcg50, micro_f1.text."""
    found = {name: value for name, value in best.items() if name != "labels"}
    for name, values in best.get("labels", {}).items():
        if name == "micro_f1":
            found[name] = values
        else:
            for way, value in values.items():
                found[way] = {**found.get(way, {}), name: value}
    return dict(_numbers({name: value for name, value in found.items() if name not in ("step", "epoch")}))


def _numbers(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{above}{name}", float(value)


def default_metrics(recipes: Sequence[Recipe], figures: Mapping[str, float] | None = None) -> tuple[str, ...]:
    """What picks the checkpoint: NDCG both ways if labels are learned, else RSUM. figures: what a protocol measured, if
    not the validation; then NDCG at the depth that it has."""
    if all(learns_labels(recipe) for recipe in recipes):
        known = list(figures) if figures is not None else _BY_LABELS
        both = [name for name in known if name.startswith(("i2t.ndcg", "t2i.ndcg"))]
        if both:
            return tuple(both)
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
