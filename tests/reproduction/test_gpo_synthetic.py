"""The synthetic experiment: exact patterns, an RMSE one can follow by hand, and trainings that learn."""

import math

import pytest
import torch

from polysem.errors import ConfigError, UnknownNameError
from polysem.features import LocalFeatures
from polysem.reproduction.gpo_synthetic import (
    DESIGNS,
    PAPER,
    PATTERNS,
    SHOWN,
    SIZES,
    GPOSettings,
    build_gpo,
    coefficients,
    compare_with_paper,
    learned_coefficients,
    paper_rmse,
    pool,
    render_experiment,
    reproduce,
    rmse,
    train_and_measure,
)

pytestmark = pytest.mark.slow

QUICK = GPOSettings(steps=3, sizes_per_step=4, width=2)


@pytest.mark.parametrize(
    ("pattern", "size", "expected"),
    [
        ("A", 4, [1 / 4] * 4),
        ("M-1", 3, [1, 0, 0]),
        ("M-10", 12, [1 / 10] * 10 + [0, 0]),
        ("T-50%", 4, [1 / 2, 1 / 2, 0, 0]),
        ("T-50%", 5, [1 / 3, 1 / 3, 1 / 3, 0, 0]),
        ("L", 4, [3 / 6, 2 / 6, 1 / 6, 0]),
    ],
)
def test_a_pattern_is_what_its_name_says(pattern, size, expected):
    assert coefficients(pattern, [size], size)[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_sums_to_one_and_ends_with_its_set(pattern):
    sizes = range(10, 121)
    theta = coefficients(pattern, sizes, 120)
    torch.testing.assert_close(theta.sum(1), torch.ones(len(sizes)))
    assert all(not row[n:].any() for row, n in zip(theta, sizes, strict=True))


def test_the_truth_pools_sorted_values():
    values = torch.tensor([[[1.0], [5.0], [3.0], [9.0]]])  # the 9 is padding
    sets = LocalFeatures.from_lengths(values, [3])
    assert pool(sets, coefficients("M-1", [3], 4)).item() == 5
    assert pool(sets, coefficients("A", [3], 4)).item() == pytest.approx(3)
    assert pool(sets, coefficients("L", [3], 4)).item() == pytest.approx((2 * 5 + 1 * 3) / 3)


def test_rmse_is_taken_over_each_set_and_averaged_over_sizes():
    found, true = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]), torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    by_hand = (math.sqrt((0.25 + 0.25) / 2) + math.sqrt((0.25 + 0.25) / 3)) / 2
    assert rmse(found, true, [2, 3]) == pytest.approx(by_hand)


def test_the_papers_table_is_complete():
    assert list(PAPER) == list(PATTERNS)
    assert all(len(row) == len(DESIGNS) * len(SIZES) for row in PAPER.values())
    assert (paper_rmse("interp", "M-1", "seen"), paper_rmse("interp", "M-10", "smaller")) == (0.065, 0.141)
    assert paper_rmse("cos-sin-bigru", "T-50%", "larger") == 0.004


def test_training_never_sees_the_other_sizes():
    assert [len(sizes) for sizes in SIZES.values()] == [81, 10, 20]
    assert sorted(n for sizes in SIZES.values() for n in sizes) == list(range(10, 121))


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        (0.0039, 0.0, "met"),
        (0.0041, 0.0, "worse"),
        (0.015, 0.03, "met"),
        (0.0449, 0.03, "met"),
        (0.014, 0.03, "better"),
        (0.046, 0.03, "worse"),
    ],
)
def test_a_cell_is_met_within_four_thousandths_or_half(ours, theirs, says):
    assert compare_with_paper(ours, theirs) == says


@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_gives_weights_for_every_size(design):
    for sizes in SIZES.values():
        theta = learned_coefficients(build_gpo(design), sizes)
        torch.testing.assert_close(theta.sum(1), torch.ones(len(sizes)))
        assert (theta >= 0).all()


def test_a_design_learns_a_pattern():
    untrained = train_and_measure("interp", "M-1", 0, QUICK).rmse
    trained = train_and_measure("interp", "M-1", 0, GPOSettings(steps=60, learning_rate=0.03, width=4)).rmse
    assert all(trained[sizes] < 0.9 * untrained[sizes] for sizes in SIZES)
    assert trained["smaller"] < untrained["smaller"] / 2


def test_a_run_depends_on_its_seed_alone():
    first, again, other = (train_and_measure("cos-sin-mlp", "L", seed, QUICK).rmse for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_an_interruption_ends_a_training():
    with pytest.raises(KeyboardInterrupt):
        train_and_measure("interp", "A", 0, QUICK, should_stop=lambda: True)


def test_the_experiment_holds_every_cell_asked_for():
    seen = []
    found = reproduce(
        ["interp", "cos-sin-bigru"], ["L", "A"], 2, QUICK, workers=1, progress=lambda *at: seen.append(at)
    )
    assert [(cell.design, cell.pattern, cell.sizes) for cell in found.cells] == [
        (design, pattern, sizes) for design in ("interp", "cos-sin-bigru") for pattern in ("A", "L") for sizes in SIZES
    ]
    assert len(found.runs) == 8
    assert seen == [("trainings", done, 8) for done in range(9)]
    assert found.met("interp")[1] == 6
    cell = found.cells[-1]
    values = [run.rmse["larger"] for run in found.runs if (run.design, run.pattern) == ("cos-sin-bigru", "L")]
    assert cell.ours == pytest.approx(sum(values) / 2)
    assert cell.spread > 0
    assert all(len(run.learned[n]) == n for run in found.runs for n in SHOWN)


@pytest.mark.slow
def test_processes_find_what_one_finds():
    alone, shared = (reproduce(["interp", "cos-sin-mlp"], ["L"], 1, QUICK, workers=n).cells for n in (1, 2))
    for one, two in zip(alone, shared, strict=True):
        assert one.ours == pytest.approx(two.ours, rel=1e-4)


def test_the_page_needs_nothing_but_itself():
    html = render_experiment(reproduce(["interp", "cos-sin-mlp"], ["T-50%"], 1, QUICK, workers=1))
    assert html.count("<svg") == 2 * len(SHOWN)
    assert "n = 120, not seen in training" in html
    assert "prefers-color-scheme: dark" in html
    assert "http" not in html


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"designs": ["interpol"]}, UnknownNameError, "Did you mean 'interp'"),
        ({"patterns": ["M-2"]}, UnknownNameError, "Known: A, L, M-1, M-10, T-50%"),
        ({"seeds": 0}, ConfigError, "seeds must be 1 or more"),
    ],
)
def test_a_mistake_is_named_with_what_there_is(asked, error, says):
    with pytest.raises(error, match=says):
        reproduce(**asked)
