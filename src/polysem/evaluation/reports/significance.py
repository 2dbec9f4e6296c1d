"""Statistical significance: bootstrap intervals, and a paired test between two models.

Both resample items, not queries: the captions of an image are not independent, and an item brings its queries of both
directions along, so that sums over directions such as RSUM come out right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from polysem.errors import ConfigError, InputError, unknown
from polysem.evaluation.metrics import CUTS
from polysem.evaluation.result import Evaluation, PerQuery

RSUM = tuple(f"{way}.r{cut}" for way in ("i2t", "t2i") for cut in CUTS)
"""What RSUM adds up."""
_ELEMENTS = 1 << 20
"""Of the largest array: resamples are taken so many items at a time."""
_SAME = ("dataset", "split", "images", "texts", "protocol", "folds")
"""What two stamps must share for their queries to be the same."""

Values = npt.NDArray[np.float64]


def intervals(
    evaluation: Evaluation, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap intervals of every mean over queries, such as {"rsum": (…, …), "i2t.r1": (…, …)}.

    Each resample draws as many items as there are, with replacement. Where all queries agree, as at a recall of 100 %,
    the interval has no width: the bootstrap knows only what it saw.
    """
    _require_level(level)
    sums, counts = _per_item(evaluation)
    by_column = _resample(np.stack([*sums.values(), *counts.values()], axis=1), resamples, seed)
    queries = dict(zip(counts, by_column[len(sums) :], strict=True))
    with np.errstate(invalid="ignore"):  # a resample of few items may hold no query of a direction
        ways = (path.rpartition(".")[0] for path in sums)
        figures = {path: total / queries[way] for path, way, total in zip(sums, ways, by_column, strict=False)}
    if figures.keys() >= set(RSUM):
        figures = {"rsum": np.sum([figures[path] for path in RSUM], axis=0), **figures}
    tail = (1 - level) / 2
    quantiles = {path: np.nanquantile(values, [tail, 1 - tail]) for path, values in figures.items()}
    return {path: (float(low), float(high)) for path, (low, high) in quantiles.items()}


def paired_p(a: Evaluation, b: Evaluation, metric: str = "rsum", resamples: int = 9999, seed: int = 0) -> float:
    """The p-value of a two-sided paired sign-flip test: how often chance alone would show such a difference.

    If they are equally good, each was better on an item with probability 1/2; so each item's difference keeps its size
    and takes a random sign. The smallest value is 1 / (resamples + 1). metric: "rsum", or one such as "i2t.r1".
    """
    _require_same_queries(a, b)
    difference = _shares(a, metric) - _shares(b, metric)
    observed = abs(difference.sum())
    difference = difference[difference != 0]  # a sign makes no difference to the others
    equal = 1e-9 * np.abs(difference).sum()  # sums of hits are often equal, but not to the last bit
    reached, random = 0, np.random.default_rng(seed)
    for rows in _blocks(len(difference), resamples):
        signs = 2 * random.integers(2, size=(rows, len(difference)), dtype=np.int8).astype(np.float64) - 1
        reached += int(np.count_nonzero(np.abs(signs @ difference) >= observed - equal))
    return (reached + 1) / (resamples + 1)


def paired_interval(
    a: Evaluation, b: Evaluation, metric: str = "rsum", resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """The percentile bootstrap interval of how much better a is than b: each resample draws the same items for both.

    Narrower than the intervals of the two suggest, since what is hard is hard for both. metric: as of `paired_p`.
    """
    _require_level(level)
    _require_same_queries(a, b)
    (one, counts), (other, _) = _per_item(a), _per_item(b)
    paths = RSUM if metric == "rsum" else (metric,)
    _require_metric(one, paths, metric)
    differences = [one[path] - other[path] for path in paths]
    sizes = [counts[path.rpartition(".")[0]] for path in paths]
    totals = _resample(np.stack([*differences, *sizes], axis=1), resamples, seed)
    with np.errstate(invalid="ignore"):  # a resample of few items may hold no query of a direction
        figures = np.sum(totals[: len(paths)] / totals[len(paths) :], axis=0)
    low, high = np.nanquantile(figures, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction of the p-values of several tests: p_(i) becomes max over j <= i of (m - j + 1) p_(j),
    at most 1. One false positive among them is then as rare as for a single test.

    Example:
        >>> holm([0.25, 0.5])
        [0.5, 0.5]
    """
    values = np.asarray(ps, dtype=np.float64)
    order = np.argsort(values)
    corrected = np.empty_like(values)
    corrected[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)).clip(max=1)
    return corrected.tolist()  # type: ignore[no-any-return]


def _per_item(evaluation: Evaluation) -> tuple[dict[str, Values], dict[str, Values]]:
    """(C,) sums of each metric ("i2t.r1") and counts of queries ("i2t") over the C items that have any query."""
    queries: Mapping[str, PerQuery] = {way: each for way, each in evaluation.per_query.items() if len(each.clusters)}
    if not queries:
        raise InputError(
            f"The evaluation of {evaluation.model} does not hold the values of each query; those read from files never "
            "do. Evaluate the model itself."
        )
    items = np.unique(np.concatenate([each.clusters for each in queries.values()]))
    sums: dict[str, Values] = {}
    counts: dict[str, Values] = {}
    for way, each in queries.items():
        positions = np.searchsorted(items, each.clusters)
        counts[way] = np.bincount(positions, minlength=len(items)).astype(np.float64)
        for name, values in each.values.items():
            sums[f"{way}.{name}"] = np.bincount(positions, values, len(items)).astype(np.float64)
    return sums, counts


def _shares(evaluation: Evaluation, metric: str) -> Values:
    """(C,) what each item adds to the figure."""
    sums, counts = _per_item(evaluation)
    paths = RSUM if metric == "rsum" else (metric,)
    _require_metric(sums, paths, metric)
    shares = np.stack([sums[path] / counts[path.rpartition(".")[0]].sum() for path in paths])
    return np.asarray(shares.sum(0), dtype=np.float64)


def _blocks(items: int, resamples: int) -> list[int]:
    """How many resamples to take at a time."""
    if resamples < 1:
        raise ConfigError(f"resamples must be at least 1, got {resamples}. The usual number is 1000 or more.")
    most = max(1, _ELEMENTS // max(1, items))
    return [min(most, resamples - first) for first in range(0, resamples, most)]


def _resample(columns: Values, resamples: int, seed: int) -> Values:
    """(items, C) -> (C, resamples): the sums over as many items as there are, drawn with replacement."""
    items, random, totals = len(columns), np.random.default_rng(seed), []
    for rows in _blocks(items, resamples):
        drawn = random.integers(items, size=(rows, items)) + items * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items)  # how often each was drawn
        totals.append(times.astype(np.float64) @ columns)
    return np.concatenate(totals).T


def _require_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"level is a share between 0 and 1, such as 0.95; got {level}.")


def _require_metric(sums: Mapping[str, Values], paths: Sequence[str], metric: str) -> None:
    if not sums.keys() >= set(paths):
        raise unknown("metric of each query", metric, [*sums, *(["rsum"] if sums.keys() >= set(RSUM) else [])])


def _require_same_queries(a: Evaluation, b: Evaluation) -> None:
    differ = [name for name in _SAME if getattr(a.stamp, name) != getattr(b.stamp, name)]
    if differ:
        detail = "; ".join(f"{name}: {getattr(a.stamp, name)} and {getattr(b.stamp, name)}" for name in differ)
        raise InputError(
            f"{a.model} and {b.model} did not answer the same queries ({detail}), so no test can pair them. "
            "Evaluate both on the same data, split and protocol."
        )
    same = a.per_query.keys() == b.per_query.keys() and all(
        np.array_equal(each.clusters, b.per_query[way].clusters) for way, each in a.per_query.items()
    )
    if a.per_query and b.per_query and not same:
        raise InputError(
            f"{a.model} and {b.model} carry the same stamp but have different queries, so their data differs. "
            "Evaluate both on the same collection."
        )
