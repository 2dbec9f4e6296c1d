"""The experiment on labels: labels read from captions, and what its table says."""

import importlib
import sys
from pathlib import Path

import pytest

from polysem.data.collection import Collection, Item, Media

pytestmark = [pytest.mark.benchmarks, pytest.mark.slow]

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def caption_labels(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("caption_labels")
    sys.modules.pop("caption_labels", None)


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("semantic_sharing")
    for name in ("semantic_sharing", "semantic_sharing_figures", "semantic_sharing_page", "caption_labels"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("caption", "named"),
    [
        ("Two women and a hot dog.", {"person", "hot dog"}),
        ("Dogs beside a fire hydrant", {"dog", "fire hydrant"}),
        ("A TELEVISION on a table", {"tv", "dining table"}),
        ("An orange wall, scattered carpets", set()),
    ],
)
def test_captions_name_things_by_many_words(caption_labels, caption, named):
    assert caption_labels.Things().named(caption) == named


def test_a_label_takes_two_captions_and_ten_photos(caption_labels):
    def photo(number, *captions):
        return Item(f"{number}.jpg", Media(Path("nowhere"), f"{number}.jpg"), captions, split="train")

    photos = [photo(number, "a dog", "one dog and a cat", "a puppy, a cat") for number in range(20)]
    photos += [photo(100, "a zebra", "the zebra"), photo(101, "a bus", "nothing"), photo(102, "sky", "more sky")]
    found = caption_labels.labelled(Collection("made up", "image", photos), 1000)
    assert {item.labels for item in found} == {("cat", "dog", "animal")}  # one zebra is too few, one mention too
    assert len(found) == 20
    assert set(found.splits) == {"test", "val", "train"}
    assert len(caption_labels.labelled(Collection("made up", "image", photos), 12)) == 12
    assert all(label in caption_labels.GROUPS or label in caption_labels.SUPER_CLASSES for label in found.label_names)


def test_means_spreads_and_differences_by_seed(benchmark):
    def cell(*values):
        return {"figures": dict(zip(benchmark.COLUMNS, values, strict=True))}

    cells = {
        benchmark.WITH: [cell(1, 2, 3, 4), cell(3, 2, 3, 4)],
        benchmark.WITHOUT: [cell(2, 2, 2, 4), cell(2, 4, 4, 4)],
    }
    table = benchmark.summary(cells)
    assert table[benchmark.WITH]["micro_f1.image"] == [2, pytest.approx(2**0.5)]
    found = benchmark.claim(cells)
    assert found["micro_f1.image"]["differences"] == [-1, 1]
    assert found["micro_f1.text"] == {"differences": [0, -2], "mean": -1, "lower_in": 1}


def test_tables_go_between_their_marks_and_nowhere_else(benchmark, tmp_path):
    from polysem.inspection.diagnose.error_analysis import KINDS

    columns = dict(list(benchmark.COLUMNS.items())[:1])
    (column,) = columns
    entry = {
        **{"items": {"train": 8, "test": 2}, "labels": 3, "labels_per_item": 1.5, "epochs": 2, "seeds": [0, 1]},
        **{"protocol": "stamp", "processor_seconds": 120, "workers": 2, "machine": {"cores": 2}},
        "table": {"one": {column: [40.0, 1.0]}, "two": {column: [50.0, 0.5]}},
        "consistency_minus_without": {column: {"mean": -1.0, "differences": [-2.0, 0.0], "lower_in": 1}},
        "failures": {"one, i2t": {"queries": 10, "wrong": 4, **dict.fromkeys(KINDS, 1), "swaps": []}},
    }
    place = tmp_path / "page.md"
    place.write_text("before\n<!-- scenes -->\nold\n<!-- /scenes -->\nafter\n")
    assert benchmark.page.fill(place, "scenes", entry, columns)
    once = place.read_text()
    assert once.startswith("before\n<!-- scenes -->\n")
    assert once.endswith("<!-- /scenes -->\nafter\n")
    assert "old" not in once
    assert "| two | **50.0 ± 0.5** |" in once
    assert "-1.0 (-2.0, +0.0)" in once
    assert "| one, i2t | 10 | 4 | 1 (25 %) |" in once
    assert benchmark.page.fill(place, "scenes", entry, columns)
    assert place.read_text() == once
    assert not benchmark.page.fill(place, "photos", entry, columns)
