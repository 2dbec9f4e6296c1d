"""Places against sorting, and what a careless or unlucky scorer may not gain by."""

import threading
import tracemalloc

import numpy as np
import pytest
import torch

from evaluation.sample_collections import sorted_places
from evaluation.sample_evaluations import relevance_from_lists, relevance_from_mask
from polysem import similarity
from polysem.errors import InputError
from polysem.evaluation import metrics, ranking
from polysem.evaluation.ranking import Relevance, rank_bidirectional, rank_rows
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.score_matrix import EmbeddingScores, EnsembleScores, ScoreMatrix, Scores
from polysem.evaluation.top_k import TopK


def tied(rng, shape, dtype=np.float32):
    """Scores of which many are equal, some infinite and some zeros negative."""
    scores = rng.integers(-3, 4, shape).astype(dtype)
    scores[scores == 3] = rng.choice([np.inf, 3, 1e30])
    scores[scores == -3] = rng.choice([-np.inf, -3])
    return np.where(rng.random(shape) < 0.5, scores, scores + dtype(0.0) * -1)


def owners_of(rng, images, texts):
    """Any number of texts per image, none included, in any order."""
    return rng.integers(0, images, texts)


def slow(scores, right):
    """Places of all right answers, query after query."""
    found = (sorted_places(row, np.flatnonzero(own)) for row, own in zip(scores.tolist(), right, strict=True))
    return [place for each in found for place in each]


def assert_sorted(found, scores, owners):
    right = owners[None] == np.arange(len(scores))[:, None]
    assert found["i2t"].ranks.tolist() == slow(scores, right)
    assert found["t2i"].ranks.tolist() == slow(scores.T, right.T)


# ------------------------------------------------------------------------------------------ against sorting


@pytest.mark.parametrize("seed", range(40))
def test_places_are_those_of_sorting(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    images, texts = int(rng.integers(1, 30)), int(rng.integers(1, 60))
    monkeypatch.setattr(ranking, "ROWS", int(rng.integers(1, 12)))
    monkeypatch.setattr(ranking, "COLUMNS", int(rng.integers(1, 40)))
    scores = tied(rng, (images, texts), rng.choice([np.float32, np.float64]))
    owners = owners_of(rng, images, texts)
    folds = int(rng.integers(1, images + 1))
    whole, parts = rank_bidirectional(ScoreMatrix(scores), owners, folds=folds)
    assert_sorted(whole, scores, owners)
    assert len(parts) == (folds if folds > 1 else 0)
    for part, members in zip(parts, np.array_split(np.arange(images), folds), strict=False):
        own = np.flatnonzero(np.isin(owners, members))
        if len(own):
            assert_sorted(part, scores[members][:, own], owners[own] - members[0])
    only, again = rank_bidirectional(ScoreMatrix(scores), owners, folds=folds, whole=False)
    assert not only
    for one, other in zip(parts, again, strict=True):
        assert np.array_equal(one["i2t"].ranks, other["i2t"].ranks)
        assert np.array_equal(one["t2i"].ranks, other["t2i"].ranks)


@pytest.mark.parametrize("seed", range(20))
def test_rows_with_any_right_answers_are_placed_as_by_sorting(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    queries, gallery = int(rng.integers(1, 30)), int(rng.integers(1, 60))
    monkeypatch.setattr(ranking, "ROWS", int(rng.integers(1, 12)))
    monkeypatch.setattr(ranking, "COLUMNS", int(rng.integers(1, 40)))
    scores, right = tied(rng, (queries, gallery)), rng.random((queries, gallery)) < rng.random()
    found = rank_rows(ScoreMatrix(scores), relevance_from_mask(right))
    assert found.ranks.tolist() == slow(scores, right)


def test_both_functions_agree():
    rng = np.random.default_rng(0)
    scores, owners = tied(rng, (20, 50)), owners_of(rng, 20, 50)
    both, _ = rank_bidirectional(ScoreMatrix(scores), owners)
    i2t = Relevance.from_pairs(owners, np.arange(50), (20, 50))
    assert np.array_equal(rank_rows(ScoreMatrix(scores), i2t).ranks, both["i2t"].ranks)
    assert np.array_equal(rank_rows(ScoreMatrix(scores).transpose(), i2t.transpose()).ranks, both["t2i"].ranks)


def test_threads_change_nothing(monkeypatch):
    monkeypatch.setattr(ranking, "ROWS", 5)
    rng = np.random.default_rng(1)
    scores, owners = rng.permutation(40 * 90).reshape(40, 90).astype(np.float32), owners_of(rng, 40, 90)
    alone, _ = rank_bidirectional(ScoreMatrix(scores), owners, keep=7)
    monkeypatch.setattr(ranking.cpu_blocks, "count", lambda device: 3)
    shared, _ = rank_bidirectional(ScoreMatrix(scores), owners, keep=7)
    assert_sorted(shared, scores, owners)
    for way in ("i2t", "t2i"):
        for one, other in zip(alone[way].top.rank(), shared[way].top.rank(), strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("seed", range(20))
def test_the_highest_scores_are_those_of_sorting(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    images, texts, keep = (int(rng.integers(1, most)) for most in (25, 50, 12))
    monkeypatch.setattr(ranking, "ROWS", int(rng.integers(1, 12)))
    monkeypatch.setattr("polysem.evaluation.top_k._PENDING", int(rng.integers(1, 200)))
    scores = np.maximum(tied(rng, (images, texts)), np.float32(-3))
    found, _ = rank_bidirectional(ScoreMatrix(scores), owners_of(rng, images, texts), keep=keep)
    for best, matrix in ((found["i2t"].top, scores), (found["t2i"].top, scores.T)):
        ids, values = best.rank()
        there = min(keep, matrix.shape[1])
        assert np.array_equal(values[:, :there], -np.sort(-matrix, axis=1)[:, :there])
        for row, places in zip(matrix, ids, strict=True):
            real = places[:there]
            assert len(set(real.tolist())) == there
            assert real.min() >= 0
            assert np.array_equal(row[real], -np.sort(-row)[:there])
        assert (ids[:, there:] == -1).all()


def test_the_best_of_scores_that_come_in_pieces():
    rng = np.random.default_rng(2)
    scores = rng.permutation(12 * 40).reshape(12, 40).astype(np.float32)
    rows, columns = TopK(12, 5), TopK(40, 5)
    for part in np.array_split(np.arange(40), 6):
        rows.add_rows(np.arange(12), part, scores[:, part])
    for part in np.array_split(np.arange(12), 4):
        columns.add_columns(part, np.arange(40), scores[part])
    for best, matrix in ((rows, scores), (columns, scores.T)):
        ids, values = best.rank()
        assert np.array_equal(values, -np.sort(-matrix, axis=1)[:, :5])
        assert np.array_equal(np.take_along_axis(matrix, ids, 1), values)


# ------------------------------------------------------------------------------------------ nothing to gain


def test_equal_scores_find_nothing():
    owners = np.repeat(np.arange(40), 5)
    found, _ = rank_bidirectional(ScoreMatrix(np.ones((40, 200), np.float32)), owners, keep=10)
    values = metrics.bidirectional_metrics(found)
    assert values["rsum"] == 0
    assert (found["i2t"].first == 195).all()
    assert (found["t2i"].ranks == 39).all()


@pytest.mark.parametrize("fill", [np.inf, -np.inf, 0.0, -0.0])
def test_one_value_everywhere_finds_nothing_whatever_it_is(fill):
    found, _ = rank_bidirectional(ScoreMatrix(np.full((30, 60), fill, np.float32)), np.repeat(np.arange(30), 2))
    assert metrics.bidirectional_metrics(found)["rsum"] == 0


def test_infinities_are_scores_like_others():
    scores = np.array([[np.inf, 0, -np.inf], [0, -np.inf, 1]], dtype=np.float32)
    found, _ = rank_bidirectional(ScoreMatrix(scores), np.array([0, 1, 1]), keep=2)
    assert found["i2t"].ranks.tolist() == [0, 0, 2]
    assert found["t2i"].ranks.tolist() == [0, 1, 0]


@pytest.mark.parametrize("place", [(0, 0), (7, 2), (29, 58)])
def test_a_score_that_is_no_number_is_named(monkeypatch, place):
    monkeypatch.setattr(ranking, "ROWS", 7)
    scores = np.random.default_rng(0).random((30, 60)).astype(np.float32)
    scores[place] = np.nan
    said = f"image {place[0]} and text {place[1]} is NaN"
    with pytest.raises(InputError, match=said):
        rank_bidirectional(ScoreMatrix(scores), np.repeat(np.arange(30), 2))
    with pytest.raises(InputError, match=said):
        rank_rows(ScoreMatrix(scores), relevance_from_lists([[0]] * 30, 60))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1)])
def test_a_single_row_or_column(shape):
    rng = np.random.default_rng(0)
    scores, owners = tied(rng, shape), owners_of(rng, *shape)
    whole, folds = rank_bidirectional(ScoreMatrix(scores), owners, keep=3)
    assert_sorted(whole, scores, owners)
    assert folds == []


def test_a_scorer_that_guesses_by_position_gains_nothing():
    """Row 7 goes with column 7: true of no collection with several captions per image."""
    images, texts = 100, 500
    scores = -np.abs(np.arange(images)[:, None] - np.arange(texts)).astype(np.float32)
    ordered, _ = rank_bidirectional(ScoreMatrix(scores), np.repeat(np.arange(images), 5))
    anyhow, _ = rank_bidirectional(
        ScoreMatrix(scores), np.random.default_rng(0).permutation(np.repeat(np.arange(images), 5))
    )
    for found in (ordered, anyhow):
        values = metrics.bidirectional_metrics(found)
        assert values["t2i"]["r1"] <= 2  # by chance, 1
        assert values["i2t"]["r1"] <= 5


def test_a_diagonal_of_high_scores_is_no_pairing():
    images, texts = 100, 500
    scores = np.zeros((images, texts), np.float32)
    scores[np.arange(images), np.arange(images)] = 1.0
    found, _ = rank_bidirectional(ScoreMatrix(scores), np.repeat(np.arange(images), 5))
    values = metrics.bidirectional_metrics(found)
    assert values["t2i"]["r1"] == pytest.approx(100 / texts)  # text 0 does belong to image 0
    assert values["i2t"]["r1"] == pytest.approx(100 / images)


def test_a_shuffled_gallery_changes_nothing():
    rng = np.random.default_rng(5)
    scores, owners = tied(rng, (24, 70)), owners_of(rng, 24, 70)
    plain, _ = rank_bidirectional(ScoreMatrix(scores), owners, keep=10)
    images, texts = rng.permutation(24), rng.permutation(70)
    position = np.argsort(images)
    shuffled, _ = rank_bidirectional(ScoreMatrix(scores[images][:, texts]), position[owners[texts]], keep=10)
    one, other = metrics.bidirectional_metrics(plain), metrics.bidirectional_metrics(shuffled)
    for way in ("i2t", "t2i"):
        for values in (one[way], other[way]):
            values.pop("hubness")  # of equal scores at the edge, any may be among the first ten
        assert one[way] == pytest.approx(other[way], abs=1e-9)


def test_a_caption_said_twice_stands_behind_its_double():
    """Two images with one caption between them: neither can be found before the other, and both are told so."""
    scores = np.array([[0.9, 0.9, 0.1], [0.9, 0.9, 0.1], [0.2, 0.2, 0.8]], dtype=np.float32)
    found, _ = rank_bidirectional(ScoreMatrix(scores), np.arange(3))
    assert found["i2t"].ranks.tolist() == [1, 1, 0]
    assert found["t2i"].ranks.tolist() == [1, 1, 0]
    either = relevance_from_lists([[0, 1], [0, 1], [2]], 3)
    assert rank_rows(ScoreMatrix(scores), either).ranks.tolist() == [0, 1, 0, 1, 0]


# ------------------------------------------------------------------------------------------ bounded memory


class _Watched(Scores):
    """Random scores that exist only while they are looked at."""

    def __init__(self, shape):
        self.shape, self.largest, self.lock = shape, (0, 0), threading.Lock()

    def tile(self, images, texts):
        shape = (len(np.arange(self.shape[0])[images]), len(np.arange(self.shape[1])[texts]))
        with self.lock:
            self.largest = max(self.largest, shape, key=np.prod)
        return np.random.default_rng(0).random(shape, dtype=np.float32)


def test_no_tile_is_larger_than_stated():
    scores = _Watched((700, 3500))
    rank_bidirectional(scores, np.repeat(np.arange(700), 5), folds=5, keep=10)
    assert scores.largest[0] <= ranking.RUN * ranking.ROWS
    assert scores.largest[1] <= 1.2 * ranking.COLUMNS
    scores = _Watched((300, 3500))
    rank_rows(scores, relevance_from_lists([[0]] * 300, 3500))
    assert np.prod(scores.largest) <= max(ranking.FEWEST * 3500, ranking.ROWS * ranking.COLUMNS)


def test_memory_is_a_small_part_of_the_matrix():
    tracemalloc.start()
    rank_bidirectional(_Watched((1800, 9000)), np.repeat(np.arange(1800), 5), folds=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 1800 * 9000 / 4


def test_progress_reaches_its_end_and_an_error_in_a_tile_is_raised():
    steps = []
    rank_bidirectional(_Watched((50, 100)), np.repeat(np.arange(50), 2), progress=lambda _, *step: steps.append(step))
    assert steps[-1][0] == steps[-1][1] == len(steps)

    class Broken(_Watched):
        def tile(self, images, texts):
            raise InputError("no such tile")

    with pytest.raises(InputError, match="no such tile"):
        rank_bidirectional(Broken((5, 5)), np.arange(5))


# ------------------------------------------------------------------------------------------ odd scores


def _with_a_nan() -> ScoreMatrix:
    scores = np.zeros((4, 6), np.float32)
    scores[1, 5] = np.nan
    return ScoreMatrix(scores)


@pytest.mark.parametrize(
    ("scores", "shape"),
    [(_with_a_nan().transpose(), (6, 4)), (_with_a_nan().subset(None, np.array([0, 2, 5])), (4, 3))],
)
def test_a_nan_is_named_by_its_place_in_the_whole(scores, shape):
    with pytest.raises(InputError, match="image 1 and text 5"):
        rank_rows(scores, relevance_from_lists([[0]] * shape[0], shape[1]))


def test_owners_and_folds_must_fit():
    with pytest.raises(InputError, match="6 texts"):
        rank_bidirectional(ScoreMatrix(np.zeros((3, 6))), np.arange(3))
    with pytest.raises(InputError, match="5 folds"):
        rank_bidirectional(ScoreMatrix(np.zeros((3, 3))), np.arange(3), folds=5)


def test_minus_infinity_stands_before_nothing():
    best = TopK(1, 3)
    best.set_rows(np.array([0]), np.array([4]), np.array([[-np.inf]], np.float32))
    assert best.rank()[0].tolist() == [[4, -1, -1]]


def test_large_doubles_are_ranked():
    scores = np.array([[1e300, 2e300], [3e300, 4e300]])
    found, _ = rank_bidirectional(ScoreMatrix(scores), np.arange(2), keep=2)
    assert found["i2t"].ranks.tolist() == [1, 0]


def test_an_item_that_every_query_rules_out_can_be_re_scored():
    scores = ScoreMatrix(np.array([[-np.inf, 0], [-np.inf, 1.0]]))
    found, _ = rank_bidirectional(Rescoring("dual-softmax").rescore(scores), np.arange(2))
    assert found["i2t"].ranks.tolist() == [1, 0]


def test_parts_of_embeddings_are_parts_of_their_scores():
    generator = torch.Generator().manual_seed(0)
    images, texts = (torch.randn(n, 2, 5, generator=generator) for n in (4, 7))
    whole = EmbeddingScores(images, texts, similarity.build("mil"))
    part = EnsembleScores([whole, whole]).subset(np.array([3, 0]), np.array([6, 1, 2])).transpose()
    expected = whole.tile(np.array([3, 0]), np.array([6, 1, 2])).T
    np.testing.assert_allclose(part.tile(slice(None), slice(None)), expected, rtol=1e-6)
