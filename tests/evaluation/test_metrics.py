"""Our metrics of every query against pytrec_eval (through ir-measures) and scikit-learn, ties and all.

The oracles know no pessimistic ties, so they are given the order that results from them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from ir_measures import AP, RR, R, Rprec, Success, iter_calc, nDCG
from sklearn.metrics import average_precision_score, label_ranking_average_precision_score, ndcg_score

from evaluation.sample_collections import sorted_places
from evaluation.sample_evaluations import relevance_from_lists
from polysem.evaluation import metrics
from polysem.evaluation.ranking import Ranking, Relevance, rank_bidirectional, rank_rows
from polysem.evaluation.score_matrix import ScoreMatrix

TOLERANCE = 1e-9


def with_several_positives() -> tuple[np.ndarray, Relevance]:
    """Scores with many ties; none to nine right answers of forty."""
    random = np.random.default_rng(0)
    scores = random.integers(0, 12, size=(70, 40)).astype(np.float32)
    return scores, relevance_from_lists([random.permutation(40)[: query % 10] for query in range(70)], 40)


def with_captions() -> tuple[np.ndarray, np.ndarray]:
    """Scores with ties; images with none to six captions, in any order."""
    random = np.random.default_rng(1)
    owners = random.permutation(np.repeat(np.arange(50), np.arange(50) % 7))
    scores = random.integers(0, 9, size=(50, len(owners))).astype(np.float64)
    scores[owners, np.arange(len(owners))] += random.integers(0, 4, size=len(owners))
    return scores, owners


def rankings() -> Iterator[tuple[str, np.ndarray, Ranking]]:
    scores, relevance = with_several_positives()
    yield "several positives", scores, rank_rows(ScoreMatrix(scores), relevance)
    scores, owners = with_captions()
    both, _ = rank_bidirectional(ScoreMatrix(scores), owners)
    assert both is not None
    yield "image to text", scores, both["i2t"]
    yield "text to image", scores.T, both["t2i"]


CASES = {name: (scores, ranking) for name, scores, ranking in rankings()}


def oracle_runs(scores: np.ndarray, relevance: Relevance) -> tuple[np.ndarray, np.ndarray]:
    """(q, G) of every query that has right answers: scores without ties in pessimistic order, and what is right."""
    asked = np.flatnonzero(relevance.counts)
    right = np.zeros(scores.shape, dtype=bool)
    right[relevance.queries, relevance.positives] = True
    order = np.lexsort((np.broadcast_to(np.arange(scores.shape[1]), scores.shape), right, -scores), axis=1)
    untied = np.empty(scores.shape)
    np.put_along_axis(untied, order, np.arange(scores.shape[1], 0, -1, dtype=float)[None], axis=1)
    return untied[asked], right[asked]


def as_trec(untied: np.ndarray, right: np.ndarray) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    qrels = {f"q{q:03}": {f"d{d}": 1 for d in np.flatnonzero(row)} for q, row in enumerate(right)}
    run = {f"q{q:03}": {f"d{d}": float(score) for d, score in enumerate(row)} for q, row in enumerate(untied)}
    return qrels, run


@pytest.mark.parametrize("case", CASES)
def test_the_cases_have_ties_and_queries_without_a_right_answer(case: str) -> None:
    scores, ranking = CASES[case]
    relevance = ranking.relevance
    moved = 0
    for query in np.flatnonzero(relevance.counts):
        own, right = scores[query], relevance.of(query)
        places = sorted_places(list(own), list(right))
        np.testing.assert_array_equal(ranking.ranks[relevance.starts[query] : relevance.starts[query + 1]], places)
        moved += places[0] != np.count_nonzero(own > own[right].max())
    assert moved > 5, "ties decide nothing here"
    assert case == "text to image" or (relevance.counts == 0).any()


@pytest.mark.parametrize("case", CASES)
def test_metrics_are_those_of_trec_eval(case: str) -> None:
    scores, ranking = CASES[case]
    qrels, run = as_trec(*oracle_runs(scores, ranking.relevance))
    theirs = {
        **{f"r{cut}": Success @ cut for cut in metrics.CUTS},
        **{f"recall{cut}": R @ cut for cut in metrics.CUTS},
        "map": AP,
        "mrr": RR,
        "r_precision": Rprec,
        "ndcg10": nDCG @ 10,
    }
    found: dict[str, dict[str, float]] = {}
    for each in iter_calc(list(theirs.values()), qrels, run):
        found.setdefault(str(each.measure), {})[each.query_id] = each.value
    ours = metrics.query_metrics(ranking)
    for name, measure in theirs.items():
        expected = [found[str(measure)][query] for query in sorted(qrels)]
        np.testing.assert_allclose(ours[name], 100 * np.array(expected), rtol=0, atol=100 * TOLERANCE, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_average_precision_and_ndcg_are_those_of_scikit_learn(case: str) -> None:
    scores, ranking = CASES[case]
    untied, right = oracle_runs(scores, ranking.relevance)
    ours = metrics.query_metrics(ranking)
    for query in range(len(right)):
        truth, given = right[query : query + 1], untied[query : query + 1]
        average = average_precision_score(truth[0], given[0])
        assert ours["map"][query] == pytest.approx(100 * average, abs=100 * TOLERANCE)
        assert ours["ndcg10"][query] == pytest.approx(100 * ndcg_score(truth, given, k=10), abs=100 * TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_map_at_r_is_average_precision_among_the_first_r(case: str) -> None:
    scores, ranking = CASES[case]
    untied, right = oracle_runs(scores, ranking.relevance)
    expected = []
    for given, truth in zip(untied, right, strict=True):
        first = truth[np.argsort(-given)][: truth.sum()]
        precision = [first[: n + 1].mean() for n in range(len(first)) if first[n]]
        expected.append(100 * sum(precision) / len(first))
    np.testing.assert_allclose(metrics.query_metrics(ranking)["map_at_r"], expected, rtol=0, atol=100 * TOLERANCE)


def test_scikit_learn_agrees_on_ties_where_it_is_pessimistic_too() -> None:
    """Its ranking average precision counts all that score as much, right answers too: the same for one right answer."""
    scores, ranking = CASES["text to image"]
    right = np.zeros(scores.shape, dtype=bool)
    right[ranking.relevance.queries, ranking.relevance.positives] = True
    expected = label_ranking_average_precision_score(right, scores)
    assert metrics.query_metrics(ranking)["mrr"].mean() == pytest.approx(100 * expected, abs=100 * TOLERANCE)
