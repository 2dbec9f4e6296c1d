"""The training benchmark compares like with like."""

import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def training(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = pytest.importorskip("training")
    yield module
    for name in ("training", "released_style"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["VSE∞", "VSE+2AD", "DivE"])
def test_ours_and_the_released_style_are_one_function(training, name):
    torch.manual_seed(0)
    sizes = training.small(training.MODELS[name])
    data = training.Data.random(sizes, sizes.images)
    found = training.parity(training.Ours(name, sizes, data), training.Released(name, sizes, data), range(sizes.images))
    assert found["loss"] > 0
    assert found["loss_difference"] < 1e-5
    assert found["gradient_difference"] < 1e-4
    assert found["worst_tensor_difference"] < 1e-3


@pytest.mark.parametrize("name", ["VSE∞", "VSE+2AD", "DivE"])
def test_both_sides_learn(training, name):
    torch.manual_seed(0)
    sizes = training.small(training.MODELS[name])
    data = training.Data.random(sizes, sizes.images)
    ours, released = training.Ours(name, sizes, data), training.Released(name, sizes, data)
    everyone = range(sizes.images)
    for losses in (
        [ours.step(everyone, epoch) for epoch in range(30)],
        [released.step(everyone) for _ in range(30)],
    ):
        assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
