"""The probability that a text and an image match, of models that are calibrated to tell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polysem.search import Entry, Index, Manifest, VectorBatch

SCALE, BIAS = 20.0, -5.0
IMAGES = np.float32([[[1, 0]], [[0.8, 0.6]], [[0, 1]]])
QUERY = np.float32([[1, 0]])


def make_index(folder: Path, **knobs: float) -> Index:
    similarity = {"name": "cosine", **knobs}
    index = Index.create(folder, Manifest("mine", {"image": 1, "text": 1}, 2, similarity))
    index.add(VectorBatch("image", [Entry("a"), Entry("b"), Entry("c")], IMAGES))
    index.add(VectorBatch("text", [Entry("t", caption="a sun")], QUERY[None]))
    return index


@pytest.fixture
def siglip(tmp_path: Path) -> Iterator[Index]:
    with make_index(tmp_path / "index", logit_scale=SCALE, logit_bias=BIAS) as index:
        yield index


def test_it_is_the_sigmoid_of_the_logit(siglip: Index) -> None:
    expected = [1 / (1 + math.exp(-(SCALE * cosine + BIAS))) for cosine in (1, 0.8, 0)]
    results = siglip.search(vectors=QUERY, vectors_side="text", find="image")
    assert [result.match for result in results] == pytest.approx(expected, abs=1e-6)
    assert results.as_dict()["items"][0]["match"] == pytest.approx(expected[0], abs=1e-6)
    from_item = siglip.search(item="t", find="image")
    assert [result.match for result in from_item] == pytest.approx(expected, abs=1e-6)
    assert siglip.search(item="a", find="text")[0].match == pytest.approx(expected[0], abs=1e-6)


def test_two_images_have_none(siglip: Index) -> None:
    assert {result.match for result in siglip.search(item="a", find="image")} == {None}
    assert siglip.search(vectors=QUERY, vectors_side="image", find="image")[0].match is None


def test_vectors_of_an_unknown_kind_have_none(siglip: Index) -> None:
    assert siglip.search(vectors=QUERY, find="image")[0].match is None


@pytest.mark.parametrize("knobs", [{}, {"logit_scale": SCALE}], ids=["cosine", "clip"])
def test_a_model_that_is_not_calibrated_tells_none(tmp_path: Path, knobs: dict[str, float]) -> None:
    with make_index(tmp_path / "index", **knobs) as index:
        assert index.search(vectors=QUERY, vectors_side="text", find="image")[0].match is None
