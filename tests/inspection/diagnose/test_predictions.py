"""Calibration tells scores that mean something from scores that do not."""

from __future__ import annotations

import numpy as np

from inspection.synthetic_galleries import rank_scores
from polysem.inspection.diagnose.error_analysis import measure_calibration


def test_a_score_that_means_what_it_says_is_calibrated() -> None:
    rng = np.random.default_rng(0)
    n = 400
    certain = rng.uniform(0.05, 0.95, n)
    right = rng.random(n) < certain
    scores = np.zeros((n, n))
    scores[np.arange(n), np.where(right, np.arange(n), (np.arange(n) + 1) % n)] = certain
    found = measure_calibration(rank_scores(scores)["i2t"], np.arange(n))
    assert found is not None
    assert found.auroc > 0.8
    assert found.error < 8
    assert sum(each.queries for each in found.bins) == n
    scores[scores > 0] = rng.uniform(0.05, 0.95, n)  # scores that say nothing
    empty = measure_calibration(rank_scores(scores)["i2t"], np.arange(n))
    assert empty is not None
    assert empty.auroc < 0.6


def test_without_wrong_answers_or_with_few_queries_there_is_no_calibration() -> None:
    assert measure_calibration(rank_scores(np.eye(40))["i2t"], np.arange(40)) is None
    assert measure_calibration(rank_scores(np.random.default_rng(0).random((5, 5)))["i2t"], np.arange(5)) is None
