"""The training benchmark compares like with like."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.benchmarks, pytest.mark.slow]

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def training(monkeypatch):
    """The benchmark under a name of its own: `training` is already the folder of those tests."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("training_benchmark", BENCHMARKS / "training.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "training_benchmark", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("released_style", None)


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
        assert sum(losses[-5:]) < 0.97 * sum(losses[:5])  # random data: there is little to learn
