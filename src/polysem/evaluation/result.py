"""What an evaluation found: figures with their stamp, and every query's share in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from polysem.evaluation.stamp import Stamp


@dataclass(frozen=True, eq=False)
class PerQuery:
    """The metrics of each query of one direction.

    values: metric -> (Q,), whose mean is the direction's figure. clusters: (Q,) the item a query belongs to: a caption
    belongs to its image. Queries of one item stand or fall together, so resampling takes items, not queries.
    """

    values: Mapping[str, npt.NDArray[np.float64]]
    clusters: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """model: what was measured, for a reader. metrics: nested, such as {"rsum": …, "i2t": {"r1": …}}.
    per_query: by direction, e.g. "i2t". facts: of the model, for tables: "set_sizes", "dim", "similarity".
    intervals: metric path -> (low, high), where they were asked for, e.g. {"rsum": …, "i2t.r1": …}.
    """

    model: str
    stamp: Stamp
    metrics: Mapping[str, Any]
    per_query: Mapping[str, PerQuery] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: the protocol's stamp, the metrics and their intervals. Each metric also stands there by its path,
        such as "i2t.r1"; what could not be measured is null."""
        metrics = _without_nan(self.metrics)
        found: dict[str, Any] = {
            "model": self.model,
            "protocol": self.stamp.as_dict(),
            "metrics": {**metrics, **dict(_by_path(metrics))},
        }
        if self.facts:
            found["facts"] = dict(self.facts)
        if self.intervals:
            found["intervals"] = _without_nan({name: list(pair) for name, pair in self.intervals.items()})
        return found


def _without_nan(value: Any) -> Any:
    """NaN is no JSON."""
    if isinstance(value, Mapping):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _by_path(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every number below the first level by its path."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _by_path(value, f"{above}{name}.")
        elif above:
            yield f"{above}{name}", value
