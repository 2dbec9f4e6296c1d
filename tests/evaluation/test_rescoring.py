"""Re-scoring against the formulas on whole matrices."""

import numpy as np
import pytest

from evaluation.sample_collections import collection, numbered
from polysem.errors import InputError, UnknownNameError
from polysem.evaluation import protocols, rescoring
from polysem.evaluation.protocols import ModelScores
from polysem.evaluation.protocols.pairs import PairsProtocol
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.score_matrix import ScoreMatrix


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def dense(method, scores, temperature=0.05, neighbours=10):
    """As published, queries being the rows."""
    scores = scores.astype(np.float64)
    if method == "dual-softmax":
        return softmax(scores / temperature, 1) * softmax(scores / temperature, 0)
    if method == "query-bank":
        return np.exp(scores / temperature) / np.exp(scores / temperature).sum(0, keepdims=True)
    k_queries, k_gallery = min(neighbours, scores.shape[0]), min(neighbours, scores.shape[1])
    of_query = np.sort(scores, 1)[:, -k_gallery:].mean(1, keepdims=True)
    of_item = np.sort(scores, 0)[-k_queries:].mean(0, keepdims=True)
    return 2 * scores - of_query - of_item


def whole(scores):
    return scores.tile(slice(None), slice(None))


def assert_same_order(given, expected, axis):
    """Equal up to what is the same for all answers to a query."""
    assert np.array_equal(np.argsort(given, axis), np.argsort(expected, axis))


@pytest.mark.parametrize("method", rescoring.METHODS)
@pytest.mark.parametrize("rows", [3, 256])
def test_the_order_is_that_of_the_published_formula(monkeypatch, method, rows):
    monkeypatch.setattr(rescoring, "_ROWS", rows)
    scores = np.random.default_rng(0).uniform(-1, 1, (17, 40)).astype(np.float32)
    forward, backward = Rescoring(method).both_ways(ScoreMatrix(scores))
    assert forward.shape == backward.shape == scores.shape
    assert_same_order(whole(forward), dense(method, scores), 1)
    assert_same_order(whole(backward), dense(method, scores.T).T, 0)


@pytest.mark.parametrize("rows", [3, 256])
def test_values_are_the_published_ones_up_to_the_query(monkeypatch, rows):
    monkeypatch.setattr(rescoring, "_ROWS", rows)
    scores = np.random.default_rng(1).uniform(-1, 1, (12, 30)).astype(np.float32)

    def centred(x):
        return x - x.mean(1, keepdims=True)

    for method in ("dual-softmax", "query-bank"):
        given = whole(Rescoring(method, temperature=0.2).rescore(ScoreMatrix(scores))) / 0.2
        assert centred(given) == pytest.approx(centred(np.log(dense(method, scores, 0.2))), abs=1e-6)
    given = whole(Rescoring("csls", neighbours=4).rescore(ScoreMatrix(scores)))
    assert centred(given) == pytest.approx(centred(dense("csls", scores, neighbours=4)), abs=1e-6)


def test_more_neighbours_than_queries_are_all_of_them():
    scores = np.random.default_rng(2).random((4, 9)).astype(np.float32)
    given = whole(Rescoring("csls", neighbours=50).rescore(ScoreMatrix(scores)))
    assert given == pytest.approx(2 * scores - scores.mean(0), abs=1e-6)


@pytest.mark.parametrize("method", ["dual-softmax", "query-bank"])
def test_a_cold_softmax_does_not_overflow(method):
    scores = np.random.default_rng(3).uniform(-1, 1, (6, 8)).astype(np.float32)
    assert np.isfinite(whole(Rescoring(method, temperature=1e-4).rescore(ScoreMatrix(scores)))).all()


@pytest.mark.parametrize("method", rescoring.METHODS)
def test_a_hub_is_demoted(method):
    """An answer that is everybody's second choice by a little more than chance is nobody's first."""
    scores = np.eye(12, dtype=np.float32) * 0.5
    scores[:, 0] = 0.6
    rescored = whole(Rescoring(method).rescore(ScoreMatrix(scores)))
    assert (scores.argmax(1) == 0).all()
    assert (rescored.argmax(1)[1:] == np.arange(1, 12)).all()


@pytest.mark.parametrize("method", rescoring.METHODS)
def test_the_stamp_says_transductive(method):
    data = collection(numbered(12, 2))
    scores = np.random.default_rng(4).random((12, 24)).astype(np.float32)
    found = protocols.find("pairs").measure(
        ModelScores("toy", ScoreMatrix(scores)), data, "test", rescoring=Rescoring(method)
    )
    assert found.stamp.scoring.startswith(f"transductive: {method}")
    assert "transductive" in str(found.stamp)
    plain = protocols.find("pairs").measure(ModelScores("toy", ScoreMatrix(scores)), data, "test")
    assert plain.stamp.scoring == "inductive"
    assert "inductive" in str(plain.stamp)


def test_figures_are_those_of_the_rescored_matrix():
    data = collection(numbered(15, 2))
    scores = np.random.default_rng(5).random((15, 30)).astype(np.float32)
    found = protocols.find("pairs").measure(
        ModelScores("toy", ScoreMatrix(scores)), data, "test", rescoring=Rescoring("query-bank")
    )
    owners = data.caption_items
    i2t = (owners[dense("query-bank", scores).argmax(1)] == np.arange(15)).mean()
    t2i = (dense("query-bank", scores.T).argmax(1) == owners).mean()
    assert found.metrics["i2t"]["r1"] == pytest.approx(100 * i2t)
    assert found.metrics["t2i"]["r1"] == pytest.approx(100 * t2i)


def test_folds_are_refused():
    protocol = PairsProtocol("toy", "", folds=3)
    scores = np.random.default_rng(6).random((6, 12)).astype(np.float32)
    with pytest.raises(InputError, match="3 folds"):
        protocol.measure(
            ModelScores("toy", ScoreMatrix(scores)), collection(numbered(6, 2)), "test", rescoring=Rescoring("csls")
        )


def test_knobs_out_of_range_are_refused():
    with pytest.raises(UnknownNameError, match="csls"):
        Rescoring("softmax")
    for knobs in ({"temperature": 0.0}, {"temperature": float("nan")}, {"neighbours": 0}):
        with pytest.raises(InputError, match="positive temperature"):
            Rescoring("csls", **knobs)


def test_a_score_that_is_no_number_is_named():
    scores = np.zeros((4, 5), np.float32)
    scores[2, 3] = np.nan
    with pytest.raises(InputError, match="image 2 and text 3"):
        Rescoring("csls").rescore(ScoreMatrix(scores))
