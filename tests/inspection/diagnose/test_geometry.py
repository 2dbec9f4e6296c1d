"""Measures of the joint space and of sets against their definitions, worked out the slow way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from inspection import synthetic_galleries as galleries
from inspection.synthetic_galleries import rank_gallery
from polysem import similarity
from polysem.evaluation.metrics import hubness
from polysem.inspection.diagnose.geometry import (
    compare_with_single_vectors,
    measure_geometry,
    measure_hubness,
    measure_spread,
    measure_usage,
)
from polysem.training.monitoring.diagnosis import circular_variance


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


def test_spread_is_the_circular_variance_of_training() -> None:
    vectors = torch.randn(30, 4, 6)
    found = measure_spread(vectors)
    assert found.variance == pytest.approx(circular_variance(vectors), rel=1e-5)
    assert found.log_variance == pytest.approx(math.log(found.variance))
    assert sum(found.counts) == 30
    same = measure_spread(torch.randn(30, 1, 6).expand(30, 4, 6))
    assert same.variance < 1e-6
    assert same.within < 1e-6
    assert measure_spread(torch.randn(1, 4, 6).expand(30, 4, 6)).within == pytest.approx(1)  # all of it within sets


def test_supervision_is_where_the_score_would_change() -> None:
    images, texts = galleries.unit(torch.randn(5, 3, 6)), galleries.unit(torch.randn(10, 2, 6))
    owners = np.repeat(np.arange(5), 2)
    best = [int((images[owners[t]] @ texts[t].t()).argmax()) for t in range(10)]
    for_images, for_texts = measure_usage(images, texts, owners, similarity.build("mil"))
    assert for_images.supervision == pytest.approx([sum(b // 2 == k for b in best) / 10 for k in range(3)])
    assert for_texts.supervision == pytest.approx([sum(b % 2 == k for b in best) / 10 for k in range(2)])
    assert for_images.wins == for_images.supervision
    even, _ = measure_usage(images, texts, owners, similarity.build("match_probability", scale=1e-4))
    assert even.supervision == pytest.approx([1 / 3] * 3, abs=1e-3)
    assert even.effective == pytest.approx(3, abs=1e-3)
    some, _ = measure_usage(images, texts, owners, similarity.build("smooth_chamfer"))
    assert sum(some.supervision) == pytest.approx(1)
    assert 1 < some.effective < 3


def test_constancy_tells_elements_that_say_the_same_of_everything() -> None:
    images = torch.randn(400, 2, 50)
    images[:, 1] = torch.randn(50)
    found, _ = measure_usage(images, images, np.arange(400), similarity.build("chamfer"))
    assert found.constancy[0] < 0.05
    assert found.constancy[1] == pytest.approx(1)


def test_one_vector_does_as_well_where_sets_collapsed_and_not_where_they_did_not() -> None:
    for gallery, low, high in ((galleries.make_collapsed(), 0.99, 1.0), (galleries.make_diverse(noise=1.0), 0.3, 0.97)):
        both = rank_gallery(gallery)
        best = {"i2t": both["i2t"].top, "t2i": both["t2i"].top}
        vectors = gallery.embeddings
        found = compare_with_single_vectors(best, vectors.images, vectors.texts, gallery.items.caption_items)  # type: ignore[arg-type]
        assert low <= found.i2t <= high
        assert low <= found.t2i <= high
