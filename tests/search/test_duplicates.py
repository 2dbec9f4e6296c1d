"""Near-duplicates are folded into the best result that shows the same."""

import numpy as np
import pytest

from polysem.errors import InputError, NonFiniteError
from polysem.search.query import compare_sets, group_duplicates


def unit(x):
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def sets(count, K=4, D=32, *, seed=0):
    return unit(np.random.default_rng(seed).standard_normal((count, K, D)))


def near(one, noise, seed=1):
    return unit(one + noise * unit(np.random.default_rng(seed).standard_normal(one.shape)))


def by_hand(a, b):
    cosine = [[float(x @ y) for y in b] for x in a]
    return min(min(max(row) for row in cosine), min(max(column) for column in zip(*cosine, strict=True)))


def test_likeness_is_the_worst_best_partner_of_both_sides():
    a, b = sets(1, 3)[0], sets(5, 4, seed=2)
    assert compare_sets(a, b) == pytest.approx([by_hand(a, each) for each in b], abs=1e-6)
    assert compare_sets(b[0], a[None])[0] == pytest.approx(compare_sets(a, b[:1])[0], abs=1e-6)


def test_different_results_lead_themselves():
    assert group_duplicates(sets(6), 0.9) == [0, 1, 2, 3, 4, 5]


def test_a_copy_points_to_the_better_result():
    original = sets(3)
    vectors = np.stack([original[0], original[1], near(original[0], 0.1), original[2], near(original[1], 0.1, 2)])
    assert group_duplicates(vectors, 0.95) == [0, 1, 0, 3, 1]
    assert group_duplicates(vectors, 0.9999) == [0, 1, 2, 3, 4]


def test_the_order_of_a_sets_vectors_does_not_matter():
    one = sets(1)[0]
    assert group_duplicates(np.stack([one, one[::-1]]), 1.0) == [0, 0]


@pytest.mark.parametrize("K", [2, 4])
def test_one_vector_without_a_partner_tells_two_apart(K):
    one = sets(1, K)[0]
    other = one.copy()
    other[-1] = sets(1, 1, seed=5)[0, 0]
    assert group_duplicates(np.stack([one, other]), 0.95) == [0, 1]


def test_a_set_within_another_is_no_duplicate_either_way():
    whole = sets(1, 2)[0]
    part = np.stack([whole[0], whole[0]])  # each of its vectors has a partner; one of the other's has none
    for pair in ([whole, part], [part, whole]):
        assert group_duplicates(np.stack(pair), 0.95) == [0, 1]


def test_single_vectors_are_compared_by_their_cosine():
    a, b = np.array([[1.0, 0.0]]), np.array([[0.8, 0.6]])
    assert group_duplicates(np.stack([a, b]), 0.79) == [0, 0]
    assert group_duplicates(np.stack([a, b]), 0.81) == [0, 1]


def test_equal_sets_are_duplicates_at_any_threshold():
    one, other = sets(2)
    assert group_duplicates(np.stack([one, other, one]), 1.0) == [0, 1, 0]


def test_nobody_points_to_a_folded_result():
    """A chain of small steps: each is near the one before, the ends are not near each other."""
    angles = np.radians([0, 15, 30, 45])
    chain = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None]
    found = group_duplicates(chain, float(np.cos(np.radians(16))))
    assert found == [0, 0, 2, 2]


def test_lengths_do_not_matter():
    one = sets(1)[0]
    assert group_duplicates(np.stack([one, 7 * one]).astype(np.float16), 0.99) == [0, 0]


def test_no_results_give_no_groups():
    assert group_duplicates(np.zeros((0, 4, 8), np.float32), 0.9) == []


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.5, float("nan")])
def test_a_threshold_is_a_cosine(threshold):
    with pytest.raises(InputError, match="cosine"):
        group_duplicates(sets(2), threshold)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="results, K, dim"):
        group_duplicates(sets(2)[0], 0.9)
    broken = sets(2)
    broken[1, 0, 0] = np.nan
    with pytest.raises(NonFiniteError, match="damaged"):
        group_duplicates(broken, 0.9)
