import numpy as np
import pytest

from polysem.data.augmentation import drop_grid_cells, drop_regions, item_rng, mask_words

WORDS = [[1], *([10 + i, 100 + i] for i in range(8)), [2]]


def many(policy, trials=4000):
    return [policy(item_rng(0, epoch, "item")) for epoch in range(trials)]


def test_draws_depend_on_seed_epoch_and_item_alone():
    first = item_rng(1, 2, "a").random(4)
    item_rng(1, 2, "b").random(100)
    assert np.array_equal(item_rng(1, 2, "a").random(4), first)
    for other in (item_rng(2, 2, "a"), item_rng(1, 3, "a"), item_rng(1, 2, "b")):
        assert not np.array_equal(other.random(4), first)


def test_regions_are_dropped_one_by_one_with_probability_a_fifth():
    kept = many(lambda rng: drop_regions(36, rng))
    counts = np.bincount(np.concatenate(kept), minlength=36) / len(kept)
    assert np.abs(counts - 0.8).max() < 0.03
    assert np.std([len(k) for k in kept]) == pytest.approx(np.sqrt(36 * 0.16), rel=0.1)


def test_an_item_is_never_left_empty():
    assert all(len(drop_regions(1, item_rng(0, epoch, "x"))) == 1 for epoch in range(200))
    assert all(len(drop_grid_cells(1, item_rng(0, epoch, "x"))) == 1 for epoch in range(200))
    assert all(mask_words([[5]], item_rng(0, e, "x"), 9, 50, protect_ends=False) for e in range(200))


def test_grids_draw_their_rate_first():
    kept = [len(k) for k in many(lambda rng: drop_grid_cells(49, rng))]
    whole = np.mean([k == 49 for k in kept])
    assert np.mean(kept) / 49 == pytest.approx(1 - 0.096, abs=0.005)
    assert whole > 0.2  # a fifth of the time nothing is dropped at all
    assert min(kept) > 25


def test_kept_regions_stay_in_order():
    assert all((np.diff(k) > 0).all() for k in many(lambda rng: drop_regions(20, rng), 50))


def test_words_are_masked_replaced_or_deleted_whole():
    outcomes = {"kept": 0.0, "masked": 0.0, "deleted": 0.0}
    for ids in many(lambda rng: mask_words(WORDS, rng, mask_id=7, vocabulary_size=1000)):
        assert (ids[0], ids[-1]) == (1, 2)
        outcomes["masked"] += ids.count(7) / 2
        outcomes["kept"] += sum(10 <= i < 18 for i in ids)
        outcomes["deleted"] += 8 - (len(ids) - 2) / 2
    total = 8 * 4000
    assert outcomes["kept"] / total == pytest.approx(0.8, abs=0.01)
    assert outcomes["masked"] / total == pytest.approx(0.1, abs=0.01)
    assert outcomes["deleted"] / total == pytest.approx(0.08, abs=0.01)


def test_the_ends_are_touched_only_where_the_released_code_does():
    ends = [ids[0] for ids in many(lambda rng: mask_words(WORDS, rng, 7, 1000, protect_ends=False), 500)]
    assert 0.1 < np.mean([end != 1 for end in ends]) < 0.3
