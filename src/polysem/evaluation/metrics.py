"""From places in a ranking to the numbers people quote. Shares are in per cent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from polysem.evaluation.ranking import BothWays, Ranking
from polysem.evaluation.top_k import Best

CUTS = (1, 5, 10)
DEPTH = 10
"""Of NDCG and of the neighbourhoods that hubness counts."""

Values = npt.NDArray[np.float64]


def per_query(ranking: Ranking) -> dict[str, Values]:
    """Every metric of every query that has a right answer; a direction's figure is the mean of each.

    r1, r5, r10: hit rates, whether any right answer is among the first 1, 5, 10. recall1, …: the share of right answers
    there. r_precision: precision among the first R, R being the number of right answers. map_at_r: the mean, over the
    first R places, of the precision at the right ones. mrr: 1 / place of the first. ndcg10: with gain 1.
    """
    relevance, places = ranking.relevance, ranking.places
    asked = relevance.counts > 0
    counts, starts = relevance.counts[asked], relevance.starts[:-1][asked]
    if not len(counts):
        return {name: np.empty(0) for name in NAMES}

    def total(values: Values) -> Values:
        return np.asarray(np.add.reduceat(values, starts), dtype=np.float64)

    nth = np.arange(len(places)) - np.repeat(starts, counts)
    size = np.repeat(counts, counts)
    first = places[starts]
    found: dict[str, Any] = {f"r{cut}": 100.0 * (first < cut) for cut in CUTS}
    found |= {f"recall{cut}": 100.0 * total((places < cut).astype(np.float64)) / counts for cut in CUTS}
    within = places < size
    found["r_precision"] = 100.0 * total(within.astype(np.float64)) / counts
    found["map_at_r"] = 100.0 * total(within * (nth + 1) / (places + 1)) / counts
    found["map"] = 100.0 * total((nth + 1) / (places + 1)) / counts
    found["mrr"] = 100.0 / (first + 1)
    ideal = np.cumsum(1 / np.log2(np.arange(DEPTH) + 2))
    gained = total(np.where(places < DEPTH, 1 / np.log2(places + 2), 0.0))
    found["ndcg10"] = 100.0 * gained / ideal[np.minimum(counts, DEPTH) - 1]
    return found


NAMES = (
    *(f"r{cut}" for cut in CUTS),
    *(f"recall{cut}" for cut in CUTS),
    *("r_precision", "map_at_r", "map", "mrr", "ndcg10"),
)


def one_way(ranking: Ranking) -> dict[str, Any]:
    """All metrics of one direction. Ranks count from 1; the median is rounded down, as the field does."""
    values, first = per_query(ranking), ranking.first
    found: dict[str, Any] = {name: float(each.mean()) if len(each) else float("nan") for name, each in values.items()}
    found["median_rank"] = float(np.floor(np.median(first)) + 1) if len(first) else float("nan")
    found["mean_rank"] = float(first.mean() + 1) if len(first) else float("nan")
    found["queries"] = len(first)
    unanswerable = len(ranking.relevance) - len(first)
    if unanswerable:
        found["queries_without_positives"] = unanswerable
    if ranking.best is not None:
        found["hubness"] = hubness(ranking.best, ranking.relevance.gallery)
    return found


def both_ways(rankings: BothWays) -> dict[str, Any]:
    i2t, t2i = one_way(rankings.i2t), one_way(rankings.t2i)
    return {"rsum": rsum(i2t, t2i), "i2t": i2t, "t2i": t2i}


def rsum(i2t: Mapping[str, Any], t2i: Mapping[str, Any]) -> float:
    return float(sum(side[f"r{cut}"] for side in (i2t, t2i) for cut in CUTS))


def mean_of(folds: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of every number over folds; counts of queries are added up."""
    first = folds[0]
    found: dict[str, Any] = {}
    for name, value in first.items():
        given = [fold[name] for fold in folds if name in fold]
        if isinstance(value, dict):
            found[name] = mean_of(given)
        else:
            found[name] = sum(given) if name.startswith("queries") else float(np.mean(given))
    return found


def hubness(best: Best, gallery: int) -> dict[str, float]:
    """How unevenly the gallery is returned: the skewness of how often an item is among the first k of a query; in per
    cent, the share of items that never are, and the share of queries that the most frequent item answers."""
    first = best.ranked()[0][:, :DEPTH]
    ids = first[first >= 0]
    counts = np.bincount(ids, minlength=gallery).astype(np.float64)
    spread = counts.std()
    skewness = float((((counts - counts.mean()) / spread) ** 3).mean()) if spread > 0 else 0.0
    queries = max(1, len(first))
    return {
        "k": float(first.shape[1]),
        "skewness": skewness,
        "never_returned": 100.0 * float((counts == 0).mean()),
        "largest_hub": 100.0 * float(counts.max(initial=0.0)) / queries,
    }
