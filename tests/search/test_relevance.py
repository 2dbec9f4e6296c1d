"""The relevance cut follows each query's own scores."""

import dataclasses
import json
from statistics import NormalDist

import numpy as np
import pytest

from polysem.errors import InputError, NonFiniteError
from polysem.search.relevance import FEW, FEWEST, Cut, find_cut, find_valley


def scores(size, right, raised, *, seed=0):
    """Normal scores, the first `right` of them raised; sorted, with the truth."""
    values = np.random.default_rng(seed).standard_normal(size) + raised * (np.arange(size) < right)
    order = np.argsort(-values)
    return values[order], order < right


def f1(count, truth):
    return 2 * truth[:count].sum() / (count + truth.sum())


@pytest.mark.parametrize(("size", "right"), [(40, 3), (200, 5), (2000, 20), (100_000, 30)])
def test_clearly_relevant_items_are_kept_and_others_are_not(size, right):
    found, truth = scores(size, right, 9.0)
    cut = find_cut(found[:100], found[:: max(1, size // 1000)], size)
    assert f1(cut.count, truth) > 0.85
    assert cut.reliable
    assert cut.complete
    assert not cut.doubtful


@pytest.mark.parametrize("size", [300, 20_000])
def test_a_third_of_the_collection_can_be_relevant(size):
    found, truth = scores(size, size // 3, 5.0)
    sample = np.random.default_rng(1).choice(found, 300, replace=False)
    assert f1(find_cut(found, sample, size).count, truth) > 0.95


@pytest.mark.parametrize(("size", "most"), [(50, 8), (1000, 15), (200_000, 40)])
def test_where_nothing_is_relevant_little_is_kept(size, most):
    counts = []
    for seed in range(5):
        found, _ = scores(size, 0, 0.0, seed=seed)
        counts.append(find_cut(found[:500], found[:: max(1, size // 1000)], size).count)
    assert np.mean(counts) < most


def test_the_height_of_the_best_decides_whether_the_cut_is_doubtful():
    normal = NormalDist()
    found = np.array([normal.inv_cdf(1 - place / 1001) for place in range(1, 1001)])
    assert find_cut(found, found, 1000).by_chance == pytest.approx(1, rel=0.1)
    assert find_cut(found, found, 1000).doubtful
    raised = np.sort(np.append(found[1:], 8.0))[::-1]
    assert not find_cut(raised, raised, 1000).doubtful


@pytest.mark.parametrize(("factor", "shift"), [(0.01, 0.7), (50.0, -3.0)])
def test_only_the_shape_of_the_scores_matters_and_not_their_scale(factor, shift):
    found, _ = scores(500, 12, 5.0)
    here, there = find_cut(found, found, 500), find_cut(factor * found + shift, factor * found + shift, 500)
    assert 0 < here.count == there.count
    assert there.threshold == pytest.approx(factor * here.threshold + shift)


def test_a_flat_threshold_could_not_do_this():
    """Two queries whose bulks lie at different heights: the irrelevant of one score above the relevant of the other."""
    found, truth = scores(500, 10, 9.0)
    for values in (found, 0.1 * found + 40):
        assert f1(find_cut(values, values, 500).count, truth) > 0.85


def test_what_beats_the_threshold_is_what_counts():
    found, _ = scores(500, 12, 5.0)
    cut = find_cut(found, found, 500)
    assert cut.count == np.count_nonzero(found >= cut.threshold)


def test_equal_scores_stay_together():
    found = np.array([5.0, 3.0, 3.0, 3.0] + [0.1] * 40 + [0.0] * 40 + [-0.1] * 40)
    for tied in (3.0, 4.0, 5.0):
        found[1:4] = tied
        assert find_cut(found, found, len(found)).count == (1 if tied == 3.0 else 4)


def test_constant_scores_leave_nothing():
    cut = find_cut(np.full(50, 0.3), np.full(200, 0.3), 200)
    assert (cut.count, cut.threshold, cut.doubtful) == (0, None, True)
    assert "none stands out" in cut.explain()


def test_a_single_item_above_constant_scores_is_found():
    found = np.array([1.0] + [0.2] * 99)
    assert find_cut(found, found, 100).count == 1
    assert find_cut(found, found[1:], 100).count == 1  # the sample has missed it


def test_more_may_follow_where_every_result_is_relevant():
    found, _ = scores(1000, 300, 6.0)
    cut = find_cut(found[:50], found, 1000)
    assert (cut.count, cut.complete) == (50, False)
    assert "more may follow" in cut.explain()
    assert find_cut(found, found, 1000).complete


def test_few_items_are_cut_with_a_warning_and_fewer_not_at_all():
    found, _ = scores(FEW - 1, 2, 9.0)
    cut = find_cut(found, found, len(found))
    assert (cut.count, cut.reliable) == (2, False)
    assert "guess" in cut.explain()
    cut = find_cut(found[: FEWEST - 1], found[: FEWEST - 1], FEWEST - 1)
    assert (cut.count, cut.threshold, cut.reliable) == (FEWEST - 1, None, False)
    assert "too few" in cut.explain()
    assert find_cut([], [], 0) == Cut(0, None, True, None, False)


def test_without_results_there_is_nothing_to_keep():
    assert find_cut([], np.arange(100.0), 100).count == 0


def test_the_same_scores_give_the_same_cut_in_any_order_of_the_background():
    found, _ = scores(3000, 900, 5.0)
    first = find_cut(found, found, 3000)
    assert first == find_cut(found, found[::-1], 3000)
    assert first.count > 600


def test_a_cut_is_plain_json_whatever_happened():
    found, _ = scores(100, 3, 6.0)
    for cut in (find_cut(found, found, 100), find_cut([1.0] * 9, [1.0] * 9, 9), find_cut([1.0], [1.0], 1)):
        assert json.loads(json.dumps(dataclasses.asdict(cut), allow_nan=False))["count"] == cut.count


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_refused(bad):
    with pytest.raises(NonFiniteError, match="1 of 3 scores"):
        find_cut([bad, 1.0, 0.5], np.arange(50.0), 50)
    with pytest.raises(NonFiniteError, match="background"):
        find_cut([1.0], np.append(np.arange(50.0), bad), 51)


def test_bad_shapes_and_orders_are_refused():
    with pytest.raises(InputError, match="best first"):
        find_cut([1.0, 2.0], np.arange(50.0), 50)
    with pytest.raises(InputError, match="one-dimensional"):
        find_cut(np.zeros((2, 2)), np.arange(50.0), 50)
    with pytest.raises(InputError, match="one-dimensional"):
        find_cut(["a"], np.arange(50.0), 50)


def test_the_valley_lies_between_two_bumps_and_one_bump_has_none():
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal(4000), 6 + rng.standard_normal(2000)
    assert 2.5 < find_valley(np.append(one, other)) < 4
    assert find_valley(one) is None
    assert find_valley(np.append(one, 6.0)) is None  # one item is no bump
    assert find_valley(np.full(100, 0.5)) is None
