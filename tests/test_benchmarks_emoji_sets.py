"""The experiment on emoji scenes: what it trains, its search, and what its table says."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from polysem import recipes
from polysem.data import open_collection
from polysem.evaluation import Evaluation, Stamp
from polysem.evaluation.result import PerQuery

pytestmark = [pytest.mark.benchmarks, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
NAMES = ("emoji_sets", "emoji_sets_page")


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("emoji_sets")
    for name in NAMES:
        sys.modules.pop(name, None)


def evaluation(*hits):
    """Of two items, with the same hits at every cut in both directions."""
    queries = {
        way: PerQuery({f"r{cut}": np.array(hits, dtype=float) for cut in (1, 5, 10)}, np.arange(len(hits)))
        for way in ("i2t", "t2i")
    }
    return Evaluation("toy", Stamp("pairs", "toy", "test", len(hits), len(hits)), {"rsum": 6 * np.mean(hits)}, queries)


def test_the_single_vectors_are_the_set_with_k_1_and_one_has_its_bytes(benchmark):
    rows = {row: recipes.load(benchmark.RECIPE, settings) for row, settings in benchmark.list_rows().items()}
    whole, single, wide = rows.values()
    assert whole.image.sets["k"] * whole.dim == wide.dim
    assert single.dim == whole.dim
    assert single.image.sets["k"] == wide.image.sets["k"] == 1


def test_a_part_of_train_and_all_of_the_rest(benchmark, tmp_path):
    made = tmp_path / "made"
    (made / benchmark.IMAGES).mkdir(parents=True)
    entries = [
        {"filename": f"{number}.png", "split": split, "sentences": [{"raw": f"scene {number}"}]}
        for number, split in enumerate(["train", "val", "train", "test", "train"])
    ]
    for entry in entries:
        (made / benchmark.IMAGES / entry["filename"]).touch()
    (made / benchmark.LIST).write_text(json.dumps({"dataset": "toy", "images": entries}))
    benchmark.take_part(made, tmp_path / "used", 2)
    assert [(item.id, item.split) for item in open_collection(tmp_path / "used")] == [
        ("0.png", "train"),
        ("1.png", "val"),
        ("2.png", "train"),
        ("3.png", "test"),
    ]


def test_every_row_gets_the_same_search(benchmark, monkeypatch):
    """A peak away from the start is found axis by axis, with as many trials for each row."""
    peaks = {"set": (8e-3, 0.2, 32), "single": (4e-3, 0.4, 16)}

    def rsum(row, values):
        return 400.0 + sum(value == best for value, best in zip(values.values(), peaks[row], strict=True))

    monkeypatch.setattr(benchmark, "train_one", lambda row, settings, values, *_: (row, values))
    monkeypatch.setattr(benchmark, "read_run", lambda run: {"best": {"rsum": rsum(*run)}, "seconds": 1.0})
    trials = benchmark.search({row: [] for row in peaks}, {}, Path())
    for row, peak in peaks.items():
        assert len(trials[row]) == 4
        assert tuple(trials[row][0]["values"].values()) == peak


def test_a_difference_knows_of_images_and_of_seeds(benchmark):
    one = evaluation(*[100.0, 100.0] * 50)
    other = evaluation(*[100.0, 0.0] * 50)
    steady = benchmark.find_difference([one, one], [other, other], "rsum")
    assert steady["mean"] == 300.0
    assert steady["each"] == [300.0, 300.0]
    low, high = steady["interval"]
    assert 200 < low < 300 < high < 400
    shaky = benchmark.find_difference([one, other], [other, other], "rsum")
    assert shaky["mean"] == 150.0
    assert shaky["interval"][0] < 0 < shaky["interval"][1]
    assert benchmark.find_difference([one], [one], "rsum")["interval"] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("mean", "interval", "says"),
    [
        (6.04, [2.0, 10.1], "The set is ahead of the row *wide* by 6.0 RSUM (+2.0 to +10.1, clear of zero)."),
        (-1.0, [-4.0, 2.0], "The set is behind the row *wide* by 1.0 RSUM (-4.0 to +2.0, which holds zero)."),
    ],
)
def test_it_says_what_the_numbers_say(benchmark, mean, interval, says):
    entry = {"set_minus": {"wide": {"rsum": {"mean": mean, "interval": interval}}}}
    assert benchmark.page.describe(entry) == says


def test_the_page_shows_the_results_that_are_kept(benchmark):
    entry = json.loads(benchmark.RESULTS.read_text(encoding="utf-8"))
    tables = "\n".join(benchmark.page.list_tables(entry))
    assert f"<!-- emoji-sets -->\n{tables}\n<!-- /emoji-sets -->" in benchmark.PAGE.read_text(encoding="utf-8")
    assert {len(trials) for trials in entry["trials"].values()} == {4}
