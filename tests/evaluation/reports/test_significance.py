"""Intervals cover, tests keep their promise, and both agree with a slow twin."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.sample_evaluations import from_hits, from_scores, stamp
from polysem.errors import ConfigError, InputError, UnknownNameError
from polysem.evaluation.reports import significance
from polysem.evaluation.reports.significance import RSUM, holm, intervals, paired_interval, paired_p
from polysem.evaluation.result import Evaluation


def test_the_intervals_hold_every_mean_and_are_the_same_each_time() -> None:
    found = from_scores(2.0)
    spans = intervals(found, resamples=300)
    assert spans == intervals(found, resamples=300)
    assert spans != intervals(found, resamples=300, seed=1)
    assert set(spans) == {"rsum"} | {f"{way}.{name}" for way in ("i2t", "t2i") for name in found.per_query[way].values}
    for path, (low, high) in spans.items():
        value = found.metrics["rsum"] if path == "rsum" else found.metrics[path[:3]][path[4:]]
        assert low <= value <= high, path
        assert low < high, path


def test_the_intervals_are_those_of_resampling_items_one_by_one() -> None:
    found = from_scores(1.5, items=25)
    spans = intervals(found, resamples=400, seed=3)
    random = np.random.default_rng(3)
    drawn: dict[str, list[float]] = {path: [] for path in ("rsum", "t2i.map", "i2t.r5")}
    for _ in range(400):
        items = random.integers(25, size=25)
        figures = {}
        for way, each in found.per_query.items():
            queries = [query for item in items for query in np.flatnonzero(each.clusters == item)]
            figures |= {f"{way}.{name}": values[queries].mean() for name, values in each.values.items()}
        figures["rsum"] = sum(figures[path] for path in RSUM)
        for path, values in drawn.items():
            values.append(figures[path])
    for path, values in drawn.items():
        np.testing.assert_allclose(spans[path], np.quantile(values, [0.025, 0.975]), atol=1e-9)


def test_blocks_of_resamples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = from_scores(1.5), from_scores(1.2)
    whole = intervals(a, resamples=200), paired_p(a, b, resamples=200)
    monkeypatch.setattr(significance, "_ELEMENTS", 60 * 7)
    spans, p = intervals(a, resamples=200), paired_p(a, b, resamples=200)
    assert p == whole[1]
    for path, span in spans.items():
        assert span == pytest.approx(whole[0][path], abs=1e-9)


def test_an_interval_covers_the_truth_as_often_as_it_says_though_captions_of_an_item_agree() -> None:
    """Each item has a difficulty that its five captions share: intervals over captions would be far too narrow."""
    random = np.random.default_rng(0)
    clusters = np.repeat(np.arange(80), 5)
    trials, covered, covered_by_queries = 200, 0, 0
    for trial in range(trials):
        hits = random.random(400) < random.beta(0.5, 0.5, size=80)[clusters]  # a mean of one half
        for by, own in (("items", clusters), ("queries", np.arange(400))):
            low, high = intervals(from_hits(hits, own), resamples=200, seed=trial, level=0.9)["t2i.r1"]
            covered += by == "items" and low <= 50 <= high
            covered_by_queries += by == "queries" and low <= 50 <= high
    assert 0.83 < covered / trials < 0.96
    assert covered_by_queries / trials < 0.75


def test_an_item_without_queries_in_one_direction_is_no_trouble() -> None:
    found = from_scores(1.0, items=2)
    low, high = intervals(found, resamples=50)["t2i.r1"]
    assert 0 <= low <= high <= 100


def test_p_is_uniform_where_the_models_are_equally_good() -> None:
    random = np.random.default_rng(1)
    clusters = np.repeat(np.arange(60), 3)
    ps = []
    for trial in range(300):
        difficulty = random.random(60)[clusters]
        a, b = (from_hits(random.random(180) < difficulty, clusters) for _ in range(2))
        ps.append(paired_p(a, b, "t2i.r1", resamples=199, seed=trial))
    # Differences are discrete, so p may be somewhat large, but never too often small.
    for level in (0.05, 0.1, 0.3, 0.5, 0.8):
        share = np.mean(np.array(ps) <= level)
        assert level - 0.12 < share < level + 3 * np.sqrt(level * (1 - level) / 300), level


def test_p_is_the_share_of_all_sign_flips_that_part_them_as_far() -> None:
    a, b = from_scores(1.6, items=12), from_scores(1.1, items=12, seed=1)
    share = np.zeros(12)
    for path in RSUM:
        way, name = path.split(".")
        one, other = a.per_query[way], b.per_query[way]
        for item, value in zip(one.clusters, one.values[name] - other.values[name], strict=True):
            share[item] += value / len(one.clusters)
    flips = np.array(np.meshgrid(*[[-1, 1]] * 12)).reshape(12, -1)
    exact = np.mean(np.abs(share @ flips) >= abs(share.sum()) - 1e-9)
    assert 0.02 < exact < 0.9
    assert paired_p(a, b, resamples=20_000) == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000))
    assert a.metrics["rsum"] - b.metrics["rsum"] == pytest.approx(share.sum())


def test_a_model_does_not_differ_from_itself() -> None:
    a = from_scores(1.0)
    assert paired_p(a, a) == 1.0
    assert paired_p(a, a, "i2t.map_at_r", resamples=10) == 1.0


def test_a_huge_difference_has_the_smallest_p_there_is() -> None:
    good, bad = from_scores(4.0), from_scores(0.0)
    assert paired_p(good, bad) == paired_p(bad, good) == 1 / 10_000


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dataset": "other"}, "dataset: toy and other"),
        ({"split": "val"}, "split: test and val"),
        ({"images": 61}, "images: 60 and 61"),
        ({"protocol": "coco-5k"}, "protocol: pairs and coco-5k"),
    ],
)
def test_models_that_answered_other_queries_are_not_compared(changes: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        paired_p(from_scores(1.0), from_scores(1.0, **changes))


def test_one_stamp_over_different_data_is_noticed() -> None:
    hits, clusters = np.arange(6) % 2 == 0, np.array([0, 0, 1, 1, 2, 2])
    with pytest.raises(InputError, match="different queries"):
        paired_p(from_hits(hits, clusters), from_hits(hits, np.array([0, 1, 1, 1, 2, 2])), "t2i.r1")


def test_how_scores_were_made_may_differ() -> None:
    assert paired_p(from_scores(1.0), from_scores(1.0, scoring="transductive: csls", selected_on="val")) == 1.0


def test_figures_from_a_file_cannot_be_resampled() -> None:
    bare = Evaluation("from a file", stamp(60, 119), {"rsum": 100.0})
    with pytest.raises(InputError, match="does not hold the values of each query"):
        intervals(bare)
    with pytest.raises(InputError, match="from a file"):
        paired_p(from_scores(1.0), bare)


def test_an_unknown_metric_is_refused_with_those_there_are() -> None:
    a = from_hits(np.array([True, False]), np.array([0, 1]))
    with pytest.raises(UnknownNameError, match=r"Known: t2i\.r1\."):
        paired_p(a, a, "rsum")


@pytest.mark.parametrize("wrong", [{"resamples": 0}, {"level": 1.0}, {"level": 0.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="got"):
        intervals(from_scores(1.0), **wrong)  # type: ignore[arg-type]


def test_holm_is_the_step_down_of_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_the_interval_of_a_difference_draws_the_same_items_for_both() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(50), 2)
    hard = rng.random(100) * 80
    a, b = (from_hits((hard + gain) / 100, clusters) for gain in (2.0, 0.0))
    assert paired_interval(a, b, "t2i.r1") == pytest.approx((2, 2))
    assert paired_interval(b, a, "t2i.r1") == pytest.approx((-2, -2))
    assert paired_interval(a, a, "t2i.r1") == (0, 0)
    low, high = intervals(a)["t2i.r1"]
    assert high - low > 5  # each by itself is far less certain


def test_the_interval_of_a_difference_is_its_definition() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(12), [1, 3] * 6)
    one, other = (rng.random(24) < share for share in (0.7, 0.4))
    drawn = np.random.default_rng(3).integers(12, size=(200, 12))
    figures = []
    for items in drawn:
        queries = np.concatenate([np.flatnonzero(clusters == item) for item in items])
        figures.append(100 * (one[queries].mean() - other[queries].mean()))
    found = paired_interval(from_hits(one, clusters), from_hits(other, clusters), "t2i.r1", resamples=200, seed=3)
    assert found == pytest.approx(np.quantile(figures, [0.025, 0.975]))
    with pytest.raises(ConfigError, match=r"level is a share.*got 95"):
        paired_interval(from_hits(one, clusters), from_hits(other, clusters), "t2i.r1", level=95)
    with pytest.raises(UnknownNameError, match=r"t2i\.r7"):
        paired_interval(from_hits(one, clusters), from_hits(other, clusters), "t2i.r7")
