"""Retrieval metrics: from ranks, from graded relevance, from predicted labels. Shares are in per cent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from polysem.errors import InputError, kind
from polysem.evaluation.ranking import Ranking, rank_bidirectional
from polysem.evaluation.score_matrix import Floats, ScoreMatrix
from polysem.evaluation.top_k import TopK, sort_keys

CUTS = (1, 5, 10)
DEPTH = 10
"""Of NDCG and of the neighbourhoods that hubness counts."""
THRESHOLD = 0.5
"""The probability from which on a label counts as predicted."""

Values = npt.NDArray[np.float64]
Gains = npt.NDArray[np.uint32]

METRICS = (
    *(f"r{cut}" for cut in CUTS),
    *(f"recall{cut}" for cut in CUTS),
    *("r_precision", "map_at_r", "map", "mrr", "ndcg10"),
)


def query_metrics(ranking: Ranking) -> dict[str, Values]:
    """Every metric of every query that has a right answer; a direction's metric is the mean of each.

    r1, r5, r10: hit rates, whether any right answer is among the first 1, 5, 10. recall1, …: the share of right answers
    there. r_precision: precision among the first R, R being the number of right answers. map_at_r: the mean, over the
    first R ranks, of the precision at the right ones. mrr: 1 / rank of the first. ndcg10: with gain 1.
    """
    relevance, ranks = ranking.relevance, ranking.ranks
    asked = relevance.counts > 0
    counts, starts = relevance.counts[asked], relevance.starts[:-1][asked]
    if not len(counts):
        return {name: np.empty(0) for name in METRICS}

    def total(values: npt.NDArray[Any]) -> Values:
        return np.asarray(np.add.reduceat(values.astype(np.float64), starts), dtype=np.float64)

    nth = np.arange(len(ranks)) - np.repeat(starts, counts)
    first, within = ranks[starts], ranks < np.repeat(counts, counts)
    values: dict[str, Any] = {f"r{cut}": 100.0 * (first < cut) for cut in CUTS}
    values |= {f"recall{cut}": 100.0 * total(ranks < cut) / counts for cut in CUTS}
    values["r_precision"] = 100.0 * total(within) / counts
    values["map_at_r"] = 100.0 * total(within * (nth + 1) / (ranks + 1)) / counts
    values["map"] = 100.0 * total((nth + 1) / (ranks + 1)) / counts
    values["mrr"] = 100.0 / (first + 1)
    ideal = np.cumsum(1 / np.log2(np.arange(DEPTH) + 2))
    gained = total(np.where(ranks < DEPTH, 1 / np.log2(ranks + 2), 0.0))
    values["ndcg10"] = 100.0 * gained / ideal[np.minimum(counts, DEPTH) - 1]
    return values


def direction_metrics(ranking: Ranking) -> dict[str, Any]:
    """All metrics of one direction. Ranks count from 1; the median is rounded down, as the field does."""
    values, first = query_metrics(ranking), ranking.first
    if len(first):
        result: dict[str, Any] = {name: float(each.mean()) for name, each in values.items()}
        result |= {"median_rank": float(np.floor(np.median(first)) + 1), "mean_rank": float(first.mean() + 1)}
    else:
        result = dict.fromkeys((*METRICS, "median_rank", "mean_rank"), float("nan"))
    result["queries"] = len(first)
    if unanswerable := len(ranking.relevance) - len(first):
        result["queries_without_positives"] = unanswerable
    if ranking.top is not None:
        result["hubness"] = hubness(ranking.top, ranking.relevance.gallery)
    return result


def bidirectional_metrics(rankings: Mapping[str, Ranking]) -> dict[str, Any]:
    """RSUM and the metrics of each direction, of which "i2t" and "t2i" are two."""
    return add_rsum({way: direction_metrics(ranking) for way, ranking in rankings.items()})


def add_rsum(ways: Mapping[str, Any]) -> dict[str, Any]:
    return {"rsum": float(sum(ways[way][f"r{cut}"] for way in ("i2t", "t2i") for cut in CUTS)), **ways}


def mean_over_folds(folds: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of every number over folds; counts of queries are added up."""
    means: dict[str, Any] = {}
    for name, value in folds[0].items():
        values = [fold[name] for fold in folds if name in fold]
        if isinstance(value, dict):
            means[name] = mean_over_folds(values)
        else:
            means[name] = sum(values) if name.startswith("queries") else float(np.mean(values))
    return means


def hubness(top: TopK, gallery: int) -> dict[str, float]:
    """How unevenly the gallery is returned: the skewness of how often an item is among the first k of a query; in per
    cent, the share of items that never are, and the share of queries that the most frequent item answers."""
    first = top.rank()[0][:, :DEPTH]
    ids = first[first >= 0]
    counts = np.bincount(ids, minlength=gallery).astype(np.float64)
    spread = counts.std()
    return {
        "k": float(first.shape[1]),
        "skewness": float((((counts - counts.mean()) / spread) ** 3).mean()) if spread > 0 else 0.0,
        "never_returned": 100.0 * float((counts == 0).mean()),
        "largest_hub": 100.0 * float(counts.max(initial=0.0)) / max(1, len(first)),
    }


def compute_recalls(scores: Tensor, owners: npt.NDArray[np.integer[Any]]) -> dict[str, Any]:
    """Recalls in both directions and their sum, which is what training watches.

    Args:
        scores: (I, T) of images with texts. Where a score is NaN, as in a run that has diverged, nothing is found.
        owners: (T,) the image of each text. A query without a right answer is left out.

    Example:
        >>> import numpy as np, torch
        >>> compute_recalls(torch.tensor([[0.9, 0.1], [0.2, 0.3]]), np.array([0, 1]))["rsum"]
        600.0
    """
    values, owners = scores.numpy(), np.asarray(owners)
    if np.isnan(values).any():
        own = np.arange(values.shape[0])[:, None] == owners
        values = np.where(np.isnan(values), np.where(own, -np.inf, np.inf), values)
    hits = {way: query_metrics(each) for way, each in rank_bidirectional(ScoreMatrix(values), owners)[0].items()}
    return add_rsum({way: {f"r{cut}": float(each[f"r{cut}"].mean()) for cut in CUTS} for way, each in hits.items()})


def discounts(k: int) -> Values:
    """(k,) of the ranks from 0: log2(rank + 2)."""
    return np.asarray(np.log2(np.arange(k) + 2.0), dtype=np.float64)


def graded_metrics(scores: Floats, gains: Gains, discount: Values) -> dict[str, Values]:
    """NDCG, precision and average precision of each query, where answers are more or less right.

    ndcg: the sum of gain / discount over the first k ranks, as a share of the largest possible. precision: the share
    of answers with a gain among the first k. map: the mean, over all answers with a gain, of the precision at their
    ranks. All are 0 where no answer has a gain; map nowhere else. scores, gains: (q, g). discount: (k,), or (q, k) of
    each query; k <= g.
    """
    k, size = discount.shape[-1], gains.shape[1]
    ordered = sort_gains(scores, gains)
    highest = np.sort(np.partition(gains, size - k, axis=1)[:, size - k :], axis=1)[:, ::-1]
    ideal = (highest / discount).sum(1)
    useful = ordered > 0
    so_far = useful.cumsum(1)
    precisions = so_far / np.arange(1, size + 1)
    return {
        "ndcg": 100.0 * (ordered[:, :k] / discount).sum(1) / np.where(ideal > 0, ideal, 1.0),
        "precision": 100.0 * useful[:, :k].mean(1),
        "map": 100.0 * (precisions * useful).sum(1) / np.maximum(1, so_far[:, -1]),
    }


def sort_gains(scores: Floats, gains: Gains) -> Gains:
    """(q, g) gains from the highest score to the lowest; of equal scores the lower gain first: ties never flatter."""
    if scores.dtype != np.float32:
        return np.take_along_axis(gains, np.lexsort((gains, -scores), axis=1), 1)
    keys = sort_keys(scores).astype(np.uint64) << np.uint64(32) | gains  # one sort for both, six times as fast
    keys.sort(axis=1)
    return keys.astype(np.uint32)


def micro_f1(probabilities: Any, labels: Sequence[Iterable[str]], classes: Sequence[str]) -> float:
    """F1 of all decisions together, in per cent: 2 hits / (predicted labels + true labels). probabilities: (items,
    classes). labels: of each item; one that is not a class cannot be predicted, and counts as missed.

    Example:
        >>> micro_f1([[0.9, 0.2], [0.4, 0.8]], [["cat"], ["cat", "dog"]], ["cat", "dog"])
        80.0
    """
    values = np.asarray(probabilities.detach().cpu() if isinstance(probabilities, Tensor) else probabilities)
    if values.shape != (len(labels), len(classes)):
        raise InputError(
            f"Predictions are probabilities of {len(labels)} items × {len(classes)} classes, got {kind(values)}. "
            'Columns are the labels of the collection in alphabetical order, or those that "classes" names.'
        )
    if not np.isfinite(values).all():
        raise InputError("Predictions hold NaN or infinity. Look for a training run that diverged.")
    predicted, number = values >= THRESHOLD, {name: column for column, name in enumerate(classes)}
    hits = true = 0
    for row, names in zip(predicted, labels, strict=True):
        own = set(names)
        true += len(own)
        hits += int(row[[number[name] for name in own if name in number]].sum())
    return 200.0 * hits / max(1, int(predicted.sum()) + true)
