"""Names in captions, kinds of confusion, and the worst failures."""

from __future__ import annotations

import numpy as np
import pytest

from inspection import synthetic_galleries as galleries
from inspection.synthetic_galleries import rank_scores
from polysem.evaluation.ranking import rank_bidirectional
from polysem.evaluation.score_matrix import ScoreMatrix
from polysem.inspection.diagnose.error_analysis import (
    NameFinder,
    classify_confusion,
    count_confusions,
    find_failures,
    label_groups,
)


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
    assert NameFinder(["dog", "tree", "fir tree", "mouse", "jeans"]).find(caption) == expected
    assert NameFinder([]).find(caption) == frozenset()


def test_confusions_are_told_apart() -> None:
    groups = {"pear": "fruit", "apple": "fruit", "dog": "animal", "cat": "animal", "car": "vehicle"}

    def kind(says: set[str], shows: set[str]) -> str:
        return classify_confusion(frozenset(says), frozenset(shows), groups)[0]

    assert kind({"dog"}, {"dog", "car"}) == "fits too"
    assert kind({"apple"}, {"pear"}) == "super-class"
    assert kind({"apple", "dog"}, {"dog", "pear"}) == "super-class"
    assert kind({"dog", "car"}, {"dog", "pear"}) == "semantic"
    assert kind({"car"}, {"pear"}) == "unrelated"
    assert classify_confusion(frozenset({"apple"}), frozenset({"pear", "car"}), groups)[1] == [("apple", "pear")]


def test_confusions_of_a_ranking_count_wrong_first_answers() -> None:
    items = galleries.make_items(8, captions=1, boxes=True, labels=True)
    scores = np.eye(8)
    scores[0, 0], scores[1, 0] = 0.0, 1.0  # the caption of a dog finds a cat first
    scores[2, 2], scores[0, 2] = 0.0, 0.9  # and that of a car a dog
    found = count_confusions(rank_scores(scores)["t2i"], items, label_groups(items), from_text=True)
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
    found = find_failures(both["i2t"], matrix, [0, 1, 2], owners.tolist())
    assert [(each.query, each.right, each.rank) for each in found] == [(0, 1, 4), (1, 2, 2)]
    assert [answer.number for answer in found[0].answers] == [3, 2, 4]
