from collections import Counter
from itertools import combinations

import pytest

from polysem.synthetic.scenes.catalogue import are_confusable
from polysem.synthetic.scenes.scene import choose_split, plan_scenes
from synthetic.fake_art import fake_kinds


def pairs(plan):
    return {frozenset((a.name, b.name)) for (a, _), (b, _) in combinations(plan.counts, 2)}


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_no_two_kinds_of_a_test_picture_ever_meet_in_train_or_val(seed):
    plans = list(plan_scenes(fake_kinds(), 400, seed))
    seen = set().union(*(pairs(plan) for plan in plans if plan.split != "test"))
    tested = set().union(*(pairs(plan) for plan in plans if plan.split == "test"))
    assert tested
    assert not tested & seen


def test_combinations_stay_unseen_across_seeds():
    seen = set().union(*(pairs(plan) for plan in plan_scenes(fake_kinds(), 300, 1) if plan.split == "train"))
    tested = set().union(*(pairs(plan) for plan in plan_scenes(fake_kinds(), 300, 2) if plan.split == "test"))
    assert not tested & seen


@pytest.mark.parametrize("items", [10, 20, 57, 200])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_every_kind_of_a_test_picture_is_trained(items, seed):
    plans = list(plan_scenes(fake_kinds(), items, seed))
    trained = {kind for plan in plans if plan.split == "train" for kind, _ in plan.counts}
    tested = {kind for plan in plans if plan.split == "test" for kind, _ in plan.counts}
    assert tested
    assert tested <= trained


def test_splits_are_80_10_10_and_none_is_empty_from_ten_on():
    assert Counter(choose_split(index) for index in range(1000)) == {"train": 800, "val": 100, "test": 100}
    assert {choose_split(index) for index in range(10)} == {"train", "val", "test"}


def test_a_larger_set_begins_with_the_smaller_one():
    assert list(plan_scenes(fake_kinds(), 80, 4))[:30] == list(plan_scenes(fake_kinds(), 30, 4))


def test_another_seed_is_another_set():
    assert list(plan_scenes(fake_kinds(), 20, 4)) != list(plan_scenes(fake_kinds(), 20, 5))


def test_look_alikes_never_share_a_picture():
    for plan in plan_scenes(fake_kinds(), 300, 0):
        assert not any(are_confusable(a, b) for (a, _), (b, _) in combinations(plan.counts, 2))


def test_somebody_stands_below_the_sky():
    for plan in plan_scenes(fake_kinds(), 300, 0):
        footings = {plan.backdrop.zones_for(kind)[0].footing for kind, _ in plan.counts}
        assert footings != {"air"}


def test_the_sun_is_alone_in_its_sky():
    for plan in plan_scenes(fake_kinds(), 500, 0):
        assert all(count == 1 for kind, count in plan.counts if kind.name in ("sun", "moon"))
