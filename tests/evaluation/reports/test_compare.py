"""The data of the papers' table: what is best, what is worse, and what may stand side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.sample_evaluations import from_scores, stamp
from polysem.errors import ConfigError, InputError, UnknownNameError
from polysem.evaluation.reports.compare import COLUMNS, compare, compare_separately, embedding_kind
from polysem.evaluation.reports.significance import holm, intervals, paired_p
from polysem.evaluation.result import Evaluation, read_evaluation


def figures(name: str, rsum: float, r1: float = 50.0) -> Evaluation:
    """As from a file: figures only."""
    return Evaluation(name, stamp(10, 20), {"rsum": rsum, "i2t": {"r1": r1, "median_rank": 100 - r1}})


def test_every_figure_is_the_evaluations_with_its_interval() -> None:
    models = [from_scores(2.0, name="good"), from_scores(1.5, name="fair"), from_scores(0.0, name="bad")]
    found = compare(models)
    assert found.columns == COLUMNS
    assert [row.model for row in found.rows] == ["good", "fair", "bad"]
    for row, model in zip(found.rows, models, strict=True):
        spans = intervals(model)
        assert row.cells["rsum"].value == model.metrics["rsum"]
        assert row.cells["t2i.r5"].value == model.metrics["t2i"]["r5"]
        assert {path: cell.interval for path, cell in row.cells.items()} == {path: spans[path] for path in COLUMNS}
    assert found.stamp == models[0].stamp
    assert not found.notes


def test_intervals_that_are_there_already_are_kept() -> None:
    model = replace(from_scores(1.0), intervals={"rsum": (1.0, 2.0)})
    assert compare([model]).rows[0].cells["rsum"].interval == (1.0, 2.0)


def test_models_are_tested_against_the_best_of_each_column_and_corrected() -> None:
    models = [from_scores(1.8, name="fair"), from_scores(2.0, name="good"), from_scores(0.0, name="bad")]
    fair, good, bad = (row.cells["rsum"] for row in compare(models).rows)
    assert good.p is None
    assert not good.is_worse
    assert [fair.p, bad.p] == holm([paired_p(models[1], models[0]), paired_p(models[1], models[2])])
    assert bad.is_worse
    assert not compare(models, alpha=1e-5).rows[2].cells["rsum"].is_worse


def test_a_twin_of_the_best_is_not_worse() -> None:
    one, other = compare([from_scores(1.0), from_scores(1.0)]).rows
    assert [cell.p for cell in other.cells.values()] == [1.0] * len(COLUMNS)
    assert {cell.place for row in (one, other) for cell in row.cells.values()} == {1}


def test_best_and_second_are_what_a_reader_of_the_digits_would_say() -> None:
    values = [400.04, 399.96, 300.0, 200.0, 300.04]
    found = compare([figures(str(value), value) for value in values], ["rsum"])
    assert [row.cells["rsum"].place for row in found.rows] == [1, 1, 2, None, 2]


def test_a_model_alone_is_not_the_best_of_anything() -> None:
    assert compare([from_scores(1.0)]).rows[0].cells["rsum"].place is None


def test_of_ranks_the_lowest_is_best() -> None:
    found = compare([figures("a", 1, r1=20), figures("b", 1, r1=80)], ["i2t.median_rank", "i2t.r1"])
    assert [[cell.place for cell in row.cells.values()] for row in found.rows] == [[2, 2], [1, 1]]


def test_a_figure_that_a_model_does_not_have_is_left_open() -> None:
    without = Evaluation("half", stamp(10, 20), {"rsum": float("nan"), "t2i": {"r1": 3.0}})
    whole, half = compare([figures("whole", 100.0), without], ["rsum", "i2t.r1"]).rows
    assert half.cells["rsum"].value is None
    assert half.cells["i2t.r1"].place is None
    assert whole.cells["rsum"].value == 100.0


def test_a_metric_that_nobody_has_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'i2t\.r1'\?"):
        compare([figures("a", 1.0)], ["i2t.r11"])


@pytest.mark.parametrize(
    "change",
    [
        {"split": "val"},
        {"dataset": "other"},
        {"protocol": "coco-5k"},
        {"folds": 5},
        {"scoring": "transductive: csls"},
        {"ties": "optimistic"},
        {"remarks": ("trained on this split",)},
    ],
)
def test_what_was_measured_differently_never_shares_a_table(change: dict[str, object]) -> None:
    models = [from_scores(1.0, name="one"), from_scores(1.0, name="two", **change), from_scores(2.0, name="three")]
    with pytest.raises(InputError, match="not measured alike") as refused:
        compare(models)
    assert str(models[1].stamp) in str(refused.value)
    first, second = compare_separately(models)
    assert [row.model for row in first.rows] == ["one", "three"]
    assert [row.model for row in second.rows] == ["two"]
    assert (first.stamp, second.stamp) == (models[0].stamp, models[1].stamp)


def test_selection_and_ensembles_may_differ_and_are_told() -> None:
    models = [
        from_scores(1.0, name="one", selected_on="val"),
        from_scores(1.1, name="two"),
        from_scores(1.2, name="three", selected_on="val", members=2),
    ]
    found = compare(models)
    assert "selected on different splits" in str(found.stamp)
    assert "mean of" not in str(found.stamp)
    assert found.notes == (
        "one: selected on val.",
        "two: selection unknown.",
        "three: selected on val.",
        "three: mean of 2 models.",
    )


def test_an_evaluation_from_a_file_has_intervals_but_no_test(tmp_path: Path) -> None:
    good = from_scores(2.0, name="good", facts={"set_sizes": (4, 4)})
    good = replace(good, intervals=intervals(good))
    (tmp_path / "good.json").write_text(json.dumps(good.as_dict()), encoding="utf-8")
    read = read_evaluation(tmp_path / "good.json")
    assert (read.stamp, read.metrics, read.intervals) == (good.stamp, good.metrics, good.intervals)
    first, second, third = compare([read, from_scores(1.0, name="b"), from_scores(0.5, name="c")]).rows
    assert first.embedding == "set 4"
    assert first.cells["rsum"].interval == good.intervals["rsum"]
    assert {cell.p for row in (first, second, third) for cell in row.cells.values()} == {None}
    assert compare([read, from_scores(1.0, name="b")]).notes == (
        "good: not tested, since its file does not hold the values of each query.",
    )


@pytest.mark.parametrize("content", ["[]", "{}", "no json", '{"model": "a", "protocol": {"x": 1}, "metrics": {}}'])
def test_a_file_that_holds_no_evaluation_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "it.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"it\.json does not hold an evaluation .*polysem eval"):
        read_evaluation(tmp_path / "it.json")
    with pytest.raises(InputError, match="No such file"):
        read_evaluation(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"set_sizes": (1, 1)}, "single"),
        ({"set_sizes": [4, 4]}, "set 4"),
        ({"set_sizes": (4, 1)}, "set 4 and 1"),
        ({"members": [{"set_sizes": (4, 4)}, {"set_sizes": (4, 4)}]}, "set 4"),
        ({"members": [{"set_sizes": (4, 4)}, {"set_sizes": (1, 1)}]}, "mixed"),
        ({}, ""),
    ],
)
def test_the_embedding_is_told_as_in_papers(facts: dict[str, object], told: str) -> None:
    assert embedding_kind(facts) == told


def test_nothing_to_compare_and_impossible_levels_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        compare([])
    with pytest.raises(ConfigError, match="alpha"):
        compare([from_scores(1.0)], alpha=5)
