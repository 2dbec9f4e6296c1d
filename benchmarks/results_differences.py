"""How far two rows are apart, with an interval that knows of other queries and of other seeds.

RSUM: the same seeds of both rows, query by query. Two things could have come out otherwise: which images val holds, and
which seeds were drawn. The first part of the variance is the paired bootstrap over images of the difference averaged
over the seeds (`polysem.evaluation.reports.significance`), the second the spread of the seeds' differences over their
number. Both are added, and Student's t takes as many degrees of freedom as Welch and Satterthwaite give such a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

import numpy as np
from results_claims import LEVEL
from scipy.stats import norm, t

from polysem.evaluation import Evaluation, Stamp
from polysem.evaluation.reports import significance
from polysem.evaluation.result import PerQuery

CUTS = (1, 5, 10)
WAYS = ("i2t", "t2i")
Difference = dict[str, Any]
_TAIL = (1 + LEVEL) / 2


def by_queries(a: Sequence[Path], b: Sequence[Path]) -> Difference:
    """RSUM of a minus that of b. a, b: the files of ranks of the same seeds, in the same order."""
    per_seed = [{way: _hits(one, way) - _hits(other, way) for way in WAYS} for one, other in zip(a, b, strict=True)]
    apart = [float(sum(each[way].mean(1).sum() for way in WAYS)) for each in per_seed]
    with np.load(a[0]) as held:
        items = {way: held[f"{way}.items"].astype(np.int64) for way in WAYS}
    mean = {way: np.mean([each[way] for each in per_seed], axis=0) for way in WAYS}
    queries = {
        way: PerQuery({f"r{cut}": values for cut, values in zip(CUTS, mean[way], strict=True)}, items[way])
        for way in WAYS
    }
    images = len(np.unique(items["i2t"]))
    stamp = Stamp("pairs", "difference", "val", images, len(items["t2i"]))
    return _found(apart, *_joined(_variance(queries, stamp, "rsum"), images, apart))


def by_values(a: Sequence[Path], b: Sequence[Path], metric: str) -> Difference:
    """A mean over queries of a minus that of b, such as "i2t.map_at_r" or "nouns.map": as `by_queries` has RSUM."""
    way, _, name = metric.rpartition(".")
    per_seed = [_values(one, metric) - _values(other, metric) for one, other in zip(a, b, strict=True)]
    with np.load(a[0]) as held:
        items = held[f"{way}.items"].astype(np.int64)
    queries = {way: PerQuery({name: np.mean(per_seed, axis=0)}, items)}
    drawn = len(np.unique(items))
    stamp = Stamp("difference", "difference", "val", drawn, len(items))
    apart = [float(each.mean()) for each in per_seed]
    return _found(apart, *_joined(_variance(queries, stamp, metric), drawn, apart))


def _values(file: Path, metric: str) -> np.ndarray:
    with np.load(file) as held:
        return held[metric].astype(np.float64)


def _variance(queries: Mapping[str, PerQuery], stamp: Stamp, metric: str) -> float:
    """Of a mean over queries, by the bootstrap over the items they belong to."""
    low, high = significance.intervals(Evaluation("difference", stamp, {}, queries), level=LEVEL)[metric]
    return ((high - low) / (2 * float(norm.ppf(_TAIL)))) ** 2


def by_seeds(apart: Sequence[float]) -> Difference:
    """Of figures that belong to a run and not to its queries: Student's interval of the seeds' differences."""
    return _found(apart, *_joined(0.0, 2, apart))


def _hits(file: Path, way: str) -> np.ndarray:
    """(cuts, queries), 100 for a hit."""
    with np.load(file) as held:
        return 100.0 * (held[way][None] < np.array(CUTS)[:, None])


def _joined(of_images: float, images: int, apart: Sequence[float]) -> tuple[float | None, float, float]:
    """The standard error, None where nothing is known of it; its degrees of freedom; and the seeds' share in it."""
    seeds = len(apart)
    of_seeds = variance(apart) / seeds if seeds > 1 else 0.0
    total = of_images + of_seeds
    if total == 0:
        return (0.0 if seeds > 1 else None), 1.0, 0.0
    freedom = total**2 / (of_images**2 / max(1, images - 1) + of_seeds**2 / max(1, seeds - 1))
    return float(total**0.5), float(freedom), of_seeds / total


def _found(apart: Sequence[float], error: float | None, freedom: float, share: float) -> Difference:
    mean, half = fmean(apart), None if error is None else float(t.ppf(_TAIL, freedom)) * error
    return {
        "mean": mean,
        "interval": None if half is None else [mean - half, mean + half],
        "error": error,
        "freedom": freedom,
        "seeds": len(apart),
        "each": [round(value, 3) for value in apart],
        "share_of_seeds": round(share, 3),
    }


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation; of one value there is none."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def value(cell: Mapping[str, Any], metric: str) -> float | None:
    """A figure of a run: "area", the mean RSUM of its validations; "log_variance", of images and texts; "negatives",
    that AdOpt kept at the end for captions that look for their image."""
    if "stopped" in cell:
        return None
    if metric == "area":
        return fmean(each["rsum"] for each in cell["validations"])
    if metric == "log_variance":
        held = cell.get("log_variance")
        return None if not held else fmean(held.values())
    if metric == "negatives":
        return cell["negatives"]["t2i"]["last"] if "negatives" in cell else None
    return float(cell["figures"][metric])
