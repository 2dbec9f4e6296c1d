"""The result of an evaluation: metrics, the protocol stamp they carry, and the values of each query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polysem.errors import InputError


@dataclass(frozen=True)
class Stamp:
    """The protocol that numbers were measured under. `str()` is the text to print beside a number.

    Args:
        dataset, split: What was searched.
        images, texts: Size of the gallery, all folds together.
        folds: Into how many galleries of equal size it was divided; metrics are means over them.
        measure: What counts as a hit.
        scoring: "inductive" (a query is scored by itself) or "transductive: …" (scores depend on the other queries).
        selected_on: The split that chose the checkpoint.
        ties: How equal scores were ordered.
        members: How many models' scores were averaged.
        resampled: What intervals and tests draw anew.
        remarks: Whatever else a reader must know.

    Example:
        >>> str(Stamp("pairs", "flickr8k", "test", images=1000, texts=5000, selected_on="val"))
        'flickr8k test, 1000×5000, hit rate, inductive, selected on val'
    """

    protocol: str
    dataset: str
    split: str
    images: int
    texts: int
    folds: int = 1
    measure: str = "hit rate"
    scoring: str = "inductive"
    selected_on: str = "unknown"
    ties: str = "pessimistic"
    members: int = 1
    resampled: str = "items"
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f"{self.images // self.folds}×{self.texts // self.folds}"
        parts = [
            f"{self.dataset} {self.split}",
            size if self.folds == 1 else f"{size} in {self.folds} folds",
            self.measure,
            self.scoring,
            "selection unknown" if self.selected_on == "unknown" else f"selected on {self.selected_on}",
        ]
        if self.members > 1:
            parts.append(f"mean of {self.members} models")
        if self.ties != "pessimistic":
            parts.append(f"ties {self.ties}")
        return ", ".join([*parts, *self.remarks])

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; "stamp" is the text."""
        return {**asdict(self), "remarks": list(self.remarks), "stamp": str(self)}


@dataclass(frozen=True, eq=False)
class PerQuery:
    """The metrics of each query of one direction: metric -> (Q,), whose mean is the direction's metric.

    clusters: (Q,) the item that a query belongs to: a caption belongs to its image. Queries of one item are not
    independent, so significance tests resample items, not queries.
    """

    values: Mapping[str, npt.NDArray[np.float64]]
    clusters: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` returns.

    Args:
        metrics: Nested, such as {"rsum": …, "i2t": {"r1": …}}.
        intervals: Path of a metric -> (low, high), e.g. {"rsum": …, "i2t.r1": …}; empty if not asked for.
        facts: Of the model, for tables: "set_sizes", "dim", "similarity".
    """

    model: str
    stamp: Stamp
    metrics: Mapping[str, Any]
    per_query: Mapping[str, PerQuery] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: stamp, metrics and intervals. Each metric is also there by its path, such as "i2t.r1"; what could
        not be measured is null."""
        metrics = _replace_nan(self.metrics)
        content: dict[str, Any] = {
            "model": self.model,
            "protocol": self.stamp.as_dict(),
            "metrics": {**metrics, **flatten_metrics(metrics)},
        }
        if self.facts:
            content["facts"] = dict(self.facts)
        if self.intervals:
            content["intervals"] = _replace_nan(self.intervals)
        return content


def flatten_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Every metric by its path.

    Example:
        >>> flatten_metrics({"rsum": 520.0, "i2t": {"r1": 80.0}})
        {'rsum': 520.0, 'i2t.r1': 80.0}
    """
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{path}": each for path, each in flatten_metrics(value).items()}
        else:
            flat[name] = value
    return flat


def read_evaluation(path: str | Path) -> Evaluation:
    """Read what `polysem eval --json` wrote: metrics and stamp, without the values of each query."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        stamp = {name: value for name, value in content["protocol"].items() if name != "stamp"}
        return Evaluation(
            content["model"],
            Stamp(**{**stamp, "remarks": tuple(stamp.get("remarks", ()))}),
            {name: value for name, value in content["metrics"].items() if "." not in name},  # others repeat these
            intervals={name: (float(low), float(high)) for name, (low, high) in content.get("intervals", {}).items()},
            facts=dict(content.get("facts", {})),
        )
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} does not hold an evaluation ({type(error).__name__}: {error}). Write one with "
            f"`polysem eval MODEL --data DATA --json > {path}`."
        ) from None


def _replace_nan(value: Any) -> Any:
    """NaN and infinity are not JSON: null instead."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)
