"""The evaluation benchmark compares like with like."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.benchmarks, pytest.mark.slow]

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "evaluation.py"


@pytest.fixture
def benchmark(monkeypatch):
    """Under a name of its own: `evaluation` is already the folder of those tests."""
    spec = importlib.util.spec_from_file_location("evaluation_benchmark", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "evaluation_benchmark", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("part", ["single", "sets"])
def test_all_ways_find_the_same(benchmark, part):
    measure = {"single": benchmark.measure_single, "sets": benchmark.measure_sets}[part]
    found = measure(benchmark.SMALL[part], rounds=1)
    assert 0 < found["recalls"]["ours"]["t2i"][0] < 100  # neither trivial nor hopeless
    for way in ("i2t", "t2i"):
        assert found["recalls"]["ours"][way] == pytest.approx(found["recalls"]["released"][way])
    json.dumps(found)


def test_ways_that_differ_are_not_compared(benchmark):
    one, other = ({"i2t": [share, 60.0, 70.0]} for share in (50.0, 51.0))
    benchmark.check(one, one)
    with pytest.raises(SystemExit, match="nothing to compare"):
        benchmark.check(one, other)


def test_a_peak_is_measured_and_everything_is_shown(benchmark):
    memory = benchmark.measure_memory(benchmark.SMALL["memory"], quick=True)
    assert 0 < memory["embeddings_mb"] <= memory["peak_mb"] < 2048
    assert benchmark.show({"memory": memory}).row_count == 1
