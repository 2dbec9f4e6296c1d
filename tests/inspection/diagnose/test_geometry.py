"""Measures of the joint space against their definitions, worked out the slow way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from inspection import synthetic_galleries as galleries
from inspection.synthetic_galleries import rank_gallery
from polysem.evaluation.metrics import hubness
from polysem.inspection.diagnose.geometry import measure_geometry, measure_hubness


def test_the_space_by_its_formulas() -> None:
    images, texts = torch.randn(6, 2, 4), torch.randn(12, 3, 4) + 1
    owners = np.repeat(np.arange(6), 2)
    a, b = (galleries.unit(galleries.unit(side).mean(1)) for side in (images, texts))
    found = measure_geometry(images, texts, owners)
    assert found.alignment == pytest.approx(float((a[owners] - b).square().sum(1).mean()), rel=1e-4)
    pairs = [float((-2 * (a[i] - a[j]).square().sum()).exp()) for i in range(6) for j in range(6) if i != j]
    assert found.uniformity_image == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-4)
    assert found.gap == pytest.approx(float((a.mean(0) - b.mean(0)).norm()), rel=1e-4)
    along = [(side @ (b.mean(0) - a.mean(0))).tolist() for side in (a, b)]
    wins = [1.0 if text > image else 0.5 if text == image else 0.0 for image in along[0] for text in along[1]]
    assert found.separable == pytest.approx(sum(wins) / len(wins))
    assert found.separable > 0.5


def test_hubness_is_that_of_the_evaluation_with_a_histogram() -> None:
    both = rank_gallery(galleries.make_diverse())
    best = both["t2i"].top
    assert best is not None
    found = measure_hubness(best, 40)
    plain = hubness(best, 40)
    assert (found.skewness, found.never_returned) == (plain["skewness"], plain["never_returned"])
    assert sum(found.counts) == 40
    assert found.expected == pytest.approx(10 * 80 / 40)
