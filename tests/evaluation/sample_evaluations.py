"""Evaluations made up for the tests, from random scores or from hits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from polysem.evaluation import metrics
from polysem.evaluation.ranking import Relevance, rank_bidirectional
from polysem.evaluation.result import Evaluation, PerQuery, Stamp
from polysem.evaluation.score_matrix import ScoreMatrix


def stamp(images: int, texts: int, changes: Mapping[str, Any] | None = None) -> Stamp:
    return Stamp(
        **{"protocol": "pairs", "dataset": "toy", "split": "test", "images": images, "texts": texts, **(changes or {})}
    )


def from_scores(
    skill: float,
    *,
    items: int = 60,
    seed: int = 0,
    name: str = "toy",
    facts: Mapping[str, Any] | None = None,
    **of: Any,
) -> Evaluation:
    """One to three captions per image; right pairs score `skill` higher. Models of one seed share their noise."""
    owners = np.repeat(np.arange(items), 1 + np.arange(items) % 3)
    scores = np.random.default_rng(seed).normal(size=(items, len(owners)))
    scores[owners, np.arange(len(owners))] += skill
    both, _ = rank_bidirectional(ScoreMatrix(scores), owners)
    per_query = {
        "i2t": PerQuery(metrics.query_metrics(both["i2t"]), np.arange(items)),
        "t2i": PerQuery(metrics.query_metrics(both["t2i"]), owners),
    }
    return Evaluation(
        name, stamp(items, len(owners), of), metrics.bidirectional_metrics(both), per_query, facts=facts or {}
    )


def from_hits(hits: np.ndarray, clusters: np.ndarray, name: str = "toy", way: str = "t2i") -> Evaluation:
    values = PerQuery({"r1": 100.0 * hits}, clusters)
    found = {way: {"r1": float(values.values["r1"].mean())}}
    return Evaluation(name, stamp(int(clusters.max()) + 1, len(hits)), found, {way: values})


def relevance_from_lists(positives: Iterable[Sequence[int]], gallery: int) -> Relevance:
    """One list of gallery positions per query."""
    lists = [list(each) for each in positives]
    queries = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
    return Relevance.from_pairs(queries, [position for each in lists for position in each], (len(lists), gallery))


def relevance_from_mask(mask: np.ndarray) -> Relevance:
    """(Q, G) of truth values."""
    return Relevance.from_pairs(*np.nonzero(mask), shape=mask.shape)
