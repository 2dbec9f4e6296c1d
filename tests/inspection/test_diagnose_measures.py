"""Each measure of the diagnosis against its definition, worked out the slow way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from inspection import made_up_galleries as made_up
from polysem import similarity
from polysem.evaluation.metrics import hubness as plain_hubness
from polysem.evaluation.ranking import BidirectionalRanking, rank_bidirectional
from polysem.evaluation.score_matrix import EmbeddingScores, ScoreMatrix
from polysem.inspection.diagnose.calibration import calibration
from polysem.inspection.diagnose.caption_objects import Names
from polysem.inspection.diagnose.confusions import classify, confusions, groups_of
from polysem.inspection.diagnose.failures import failures
from polysem.inspection.diagnose.geometry import auroc, hubness, space
from polysem.inspection.diagnose.sets import as_one, spread
from polysem.inspection.diagnose.slots import usage
from polysem.inspection.gallery import Gallery
from polysem.training.collapse import circular_variance


def ranked(gallery: Gallery) -> BidirectionalRanking:
    found, _ = rank_bidirectional(
        EmbeddingScores(gallery.embeddings.images, gallery.embeddings.texts, gallery.model.similarity),
        gallery.items.caption_items,
        keep=10,
    )
    assert found is not None
    return found


def test_spread_is_the_circular_variance_of_training() -> None:
    vectors = torch.randn(30, 4, 6)
    found = spread(vectors)
    assert found.variance == pytest.approx(circular_variance(vectors), rel=1e-5)
    assert found.log_variance == pytest.approx(math.log(found.variance))
    assert sum(found.counts) == 30
    same = spread(torch.randn(30, 1, 6).expand(30, 4, 6))
    assert same.variance < 1e-6
    assert same.within < 1e-6
    assert spread(torch.randn(1, 4, 6).expand(30, 4, 6)).within == pytest.approx(1)  # all of it within sets


def test_supervision_is_where_the_score_would_change() -> None:
    images, texts = made_up.unit(torch.randn(5, 3, 6)), made_up.unit(torch.randn(10, 2, 6))
    owners = np.repeat(np.arange(5), 2)
    best = [int((images[owners[t]] @ texts[t].t()).argmax()) for t in range(10)]
    for_images, for_texts = usage(images, texts, owners, similarity.build("mil"))
    assert for_images.supervision == pytest.approx([sum(b // 2 == k for b in best) / 10 for k in range(3)])
    assert for_texts.supervision == pytest.approx([sum(b % 2 == k for b in best) / 10 for k in range(2)])
    assert for_images.wins == for_images.supervision
    even, _ = usage(images, texts, owners, similarity.build("match_probability", scale=1e-4))
    assert even.supervision == pytest.approx([1 / 3] * 3, abs=1e-3)
    assert even.effective == pytest.approx(3, abs=1e-3)
    some, _ = usage(images, texts, owners, similarity.build("smooth_chamfer"))
    assert sum(some.supervision) == pytest.approx(1)
    assert 1 < some.effective < 3


def test_constancy_tells_elements_that_say_the_same_of_everything() -> None:
    images = torch.randn(400, 2, 50)
    images[:, 1] = torch.randn(50)
    found, _ = usage(images, images, np.arange(400), similarity.build("chamfer"))
    assert found.constancy[0] < 0.05
    assert found.constancy[1] == pytest.approx(1)


def test_one_vector_does_as_well_where_sets_collapsed_and_not_where_they_did_not() -> None:
    for gallery, low, high in ((made_up.collapsed(), 0.99, 1.0), (made_up.sound(noise=1.0), 0.3, 0.97)):
        both = ranked(gallery)
        best = {"i2t": both.i2t.top, "t2i": both.t2i.top}
        vectors = gallery.embeddings
        found = as_one(best, vectors.images, vectors.texts, gallery.items.caption_items)  # type: ignore[arg-type]
        assert low <= found.i2t <= high
        assert low <= found.t2i <= high


def test_the_space_by_its_formulas() -> None:
    images, texts = torch.randn(6, 2, 4), torch.randn(12, 3, 4) + 1
    owners = np.repeat(np.arange(6), 2)
    a, b = (made_up.unit(made_up.unit(side).mean(1)) for side in (images, texts))
    found = space(images, texts, owners)
    assert found.alignment == pytest.approx(float((a[owners] - b).square().sum(1).mean()), rel=1e-4)
    pairs = [float((-2 * (a[i] - a[j]).square().sum()).exp()) for i in range(6) for j in range(6) if i != j]
    assert found.uniformity_image == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-4)
    assert found.gap == pytest.approx(float((a.mean(0) - b.mean(0)).norm()), rel=1e-4)
    assert found.separable > 0.5


def test_auroc_counts_pairs_and_half_of_ties() -> None:
    positive, negative = torch.randint(5, (30,)).float(), torch.randint(5, (20,)).float()
    wins = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive.tolist() for n in negative.tolist()]
    assert auroc(positive, negative) == pytest.approx(sum(wins) / len(wins))
    assert math.isnan(auroc(positive, negative[:0]))


def test_hubness_is_that_of_the_evaluation_with_a_histogram() -> None:
    both = ranked(made_up.sound())
    best = both.t2i.top
    assert best is not None
    found = hubness(best, 40)
    plain = plain_hubness(best, 40)
    assert (found.skewness, found.never_returned) == (plain["skewness"], plain["never_returned"])
    assert sum(found.counts) == 40
    assert found.expected == pytest.approx(10 * 80 / 40)


def scored(scores: np.ndarray) -> BidirectionalRanking:
    found, _ = rank_bidirectional(ScoreMatrix(scores), np.arange(scores.shape[1]), keep=10)
    assert found is not None
    return found


def test_a_score_that_means_what_it_says_is_calibrated() -> None:
    rng = np.random.default_rng(0)
    n = 400
    certain = rng.uniform(0.05, 0.95, n)
    right = rng.random(n) < certain
    scores = np.zeros((n, n))
    scores[np.arange(n), np.where(right, np.arange(n), (np.arange(n) + 1) % n)] = certain
    found = calibration(scored(scores).i2t, np.arange(n))
    assert found is not None
    assert found.auroc > 0.8
    assert found.error < 8
    assert sum(each.queries for each in found.bins) == n
    scores[scores > 0] = rng.uniform(0.05, 0.95, n)  # scores that say nothing
    empty = calibration(scored(scores).i2t, np.arange(n))
    assert empty is not None
    assert empty.auroc < 0.6


def test_without_wrong_answers_or_with_few_queries_there_is_no_calibration() -> None:
    assert calibration(scored(np.eye(40)).i2t, np.arange(40)) is None
    assert calibration(scored(np.random.default_rng(0).random((5, 5))).i2t, np.arange(5)) is None


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("Two dogs and a fir tree.", {"dog", "fir tree"}),
        ("A tree.", {"tree"}),
        ("Three mice near a hotdog stand", {"mouse"}),
        ("A pair of blue jeans", {"jeans"}),
        ("Nothing of it", set()),
    ],
)
def test_names_are_found_as_words_and_in_the_plural(caption: str, expected: set[str]) -> None:
    assert Names(["dog", "tree", "fir tree", "mouse", "jeans"]).named(caption) == expected
    assert Names([]).named(caption) == frozenset()


def test_confusions_are_told_apart() -> None:
    groups = {"pear": "fruit", "apple": "fruit", "dog": "animal", "cat": "animal", "car": "vehicle"}

    def kind(says: set[str], shows: set[str]) -> str:
        return classify(frozenset(says), frozenset(shows), groups)[0]

    assert kind({"dog"}, {"dog", "car"}) == "fits too"
    assert kind({"apple"}, {"pear"}) == "super-class"
    assert kind({"apple", "dog"}, {"dog", "pear"}) == "super-class"
    assert kind({"dog", "car"}, {"dog", "pear"}) == "semantic"
    assert kind({"car"}, {"pear"}) == "unrelated"
    assert classify(frozenset({"apple"}), frozenset({"pear", "car"}), groups)[1] == [("apple", "pear")]


def test_confusions_of_a_ranking_count_wrong_first_answers() -> None:
    items = made_up.items(8, captions=1, boxes=True, labels=True)
    scores = np.eye(8)
    scores[0, 0], scores[1, 0] = 0.0, 1.0  # the caption of a dog finds a cat first
    scores[2, 2], scores[0, 2] = 0.0, 0.9  # and that of a car a dog
    found = confusions(scored(scores).t2i, items, groups_of(items), texts_ask=True)
    assert found.wrong == 2
    assert found.kinds == {"fits too": 0, "super-class": 1, "semantic": 0, "unrelated": 1}
    assert ("dog", "cat", "super-class") in {(swap.says, swap.shows, swap.kind) for swap in found.swaps}


def test_failures_come_worst_first_with_their_best_right_answer() -> None:
    scores = np.zeros((3, 6)) + np.linspace(0, 0.01, 6)
    owners = np.repeat(np.arange(3), 2)
    scores[0] = [0.1, 0.3, 0.5, 0.6, 0.4, 0.0]  # its captions are 0 and 1: the second is the better, at place 4
    scores[1] = [0.9, 0.0, 0.5, 0.2, 0.0, 0.0]
    scores[2] = [0.0, 0.0, 0.0, 0.0, 0.9, 0.8]
    matrix = ScoreMatrix(scores)
    both, _ = rank_bidirectional(matrix, owners, keep=10)
    assert both is not None
    found = failures(both.i2t, matrix, [0, 1, 2], owners.tolist())
    assert [(each.query, each.right, each.rank) for each in found] == [(0, 1, 4), (1, 2, 2)]
    assert [answer.place for answer in found[0].answers] == [3, 2, 4]
