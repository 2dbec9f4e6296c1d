"""The first half of docs/benchmarks/results.md, over DINOv2 tokens: its search never sees val, its runs resume, and its
page says what was measured."""

import importlib
import json
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from polysem import recipes
from training.small import TINY, make_data

pytestmark = [pytest.mark.benchmarks, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
GRID = {"rates": ["1e-3", "1e-2"], "dropouts": [[0.0, 0.0]], "epochs": [1, 2]}
ONE = ("image.sets.k=1", "text.sets.k=1", "regularisers=[]")
ROWS = {
    "common": [*(setting for setting in TINY if "epochs" not in setting)],
    "grid": GRID,
    "rows": [
        {"name": "vse-infty", "label": "VSE∞", "base": "vse-infty", "dropped": []},
        {"name": "dive-one", "label": "one slot", "base": "dive", "dropped": [], "settings": ONE},
        {
            **{"name": "dive", "label": "DivE", "base": "dive", "dropped": [], "searched_as": "dive-one"},
            **{"kind": "set", "twin": "dive-one", "equal_bytes": "vse-infty"},
        },
    ],
}


@pytest.fixture(scope="module")
def part():
    """A module of the benchmark by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module
    for name in [name for name in sys.modules if name.startswith("results_")]:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def finished(part, tmp_path_factory):
    """Two seeds of the rows above, in two goes: the search of one row first."""
    place = tmp_path_factory.mktemp("dinov2")
    make_data(place / "data", train=40, val=40)
    for file in (place / "data").glob("*_caps.txt"):  # sentences with nouns that a few pictures show: to be asked for
        lines = [line.split()[2:4] for line in file.read_text().splitlines()]
        pairs = [lines[5 * (number // 5)] for number in range(len(lines))]
        file.write_text("".join(f"a {one} and a {other}\n" for one, other in pairs))
    (place / "rows.json").write_text(json.dumps(ROWS))
    page = place / "docs" / part("results_page").PAGE
    page.parent.mkdir(parents=True)
    page.write_text((ROOT / "docs" / part("results_page").PAGE).read_text(encoding="utf-8"), encoding="utf-8")
    return place, [go(part, place, "--only", "vse-infty", "--search-only"), go(part, place)]


def go(part, place, *options):
    command = ["--data", str(place / "data"), "--out", str(place / "runs"), "--rows", str(place / "rows.json")]
    command += ["--output", str(place / "results.json"), "--docs", str(place / "docs"), "--seeds", "2", *options]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as told:
        patch.setattr(sys, "argv", ["results_dinov2.py", *command])
        part("results_dinov2").main()
    return told.getvalue()


def read(place):
    return json.loads((place / "results.json").read_text())


def test_finished_runs_and_trials_are_not_repeated(part, finished):
    place, (first, second) = finished
    assert first.count("search VSE∞") == 3  # two rates, and the better one for longer
    assert second.count("search") == 3  # of the twin; the set trains as it does
    assert second.count("seed") == 6
    before = {path: path.stat().st_mtime_ns for path in (place / "runs").glob("*/*.json")}
    assert len(before) == 12
    assert go(part, place) == ""
    assert {path: path.stat().st_mtime_ns for path in (place / "runs").glob("*/*.json")} == before


def test_the_search_learns_from_train_alone_and_keeps_every_trial(part, finished):
    place, _ = finished
    entry = read(place)
    assert entry["held_out"]["train"] + entry["held_out"]["held"] == entry["data"]["splits"]["train"] == 40
    rows, run = part("results_dinov2_rows"), part("results_dinov2_run")
    data = importlib.import_module("polysem.data").open_collection(place / "data")
    bench = run.Bench(rows.plan(place / "rows.json"), data, None, None, place / "runs")
    assert {item.id for item in bench.search_data} == {item.id for item in data.split("train")}
    for name in ("vse-infty", "dive-one"):
        found = entry["search"][name]
        short = {trial["rate"]: trial["rsum"] for trial in found["trials"] if trial["epochs"] == 1}
        best = max(short, key=lambda rate: short[rate])
        longer = next(trial for trial in found["trials"] if trial["epochs"] == 2)
        assert longer["rate"] == found["chosen"]["rate"] == best
        assert found["chosen"]["epochs"] == (2 if longer["rsum"] > short[best] else 1)
    assert entry["rows"]["dive"]["searched_as"] == "dive-one"
    assert entry["rows"]["dive"]["runs"][0]["trial"] == entry["rows"]["dive-one"]["runs"][0]["trial"]


def test_the_last_weights_are_measured_by_pairs_and_parts(finished):
    place, _ = finished
    for row in read(place)["rows"].values():
        assert len(row["runs"]) == 2
        for cell in row["runs"]:
            assert cell["figures"]["rsum"] == pytest.approx(cell["last_rsum"], abs=1e-6)
            assert {"i2t.map_at_r", "i2t.r_precision", "nouns.map", "nouns.precision10"} <= cell["figures"].keys()
            assert all("no split" in stamp for stamp in cell["protocols"].values())


def test_a_set_stands_beside_its_twin_and_its_bytes(part, finished):
    place, _ = finished
    entry = read(place)
    rows = entry["rows"]
    for role, other in (("twin", "dive-one"), ("equal_bytes", "vse-infty")):
        held = rows["dive"][role]
        assert held["row"] == other
        for metric in ("rsum", "i2t.map_at_r", "nouns.map"):
            wanted = rows["dive"]["mean"][metric][0] - rows[other]["mean"][metric][0]
            assert held["against"][metric]["mean"] == pytest.approx(wanted, abs=1e-3)
            low, high = held["against"][metric]["interval"]
            assert low < wanted < high
    page = (place / "docs" / part("results_page").PAGE).read_text(encoding="utf-8")
    assert "**6 of 6 runs** (3 rows × 2 seeds)" in page
    mean, spread = rows["dive"]["mean"]["rsum"]
    assert re.search(rf"\| DivE \| 4 × 16 \| 2 \| \**{mean:.1f} ± {spread:.1f}\** \|", page)
    assert "| DivE | its K = 1 twin: one slot | 2 | " in page
    assert "results-dinov2-search.png" in page


# ------------------------------------------------------------------------------------------------- rows and the rule


def test_every_row_is_a_recipe_that_can_be_built(part):
    rows = part("results_dinov2_rows")
    plan, trial = rows.plan(), rows.Trial("1e-3", (0.3, 0.2), 7)
    encoder = "image.encoder={name: patch, model: dinov2-small, grid: 4, trainable: none}"
    for row in plan.rows.values():
        recipe = recipes.load(row.base, [encoder, *plan.settings(row, trial)])
        assert (recipe.optimiser.lr, recipe.training.epochs, recipe.training.batch) == (1e-3, 7, 256)
        for side, rate in ((recipe.image, 0.3), (recipe.text, 0.2)):
            assert [getattr(side, name)["dropout"] for name in row.dropped] == [rate] * len(row.dropped)
        assert {row.search, row.twin or row.name, row.equal_bytes or row.name} <= plan.rows.keys()
        assert (row.kind == "set") == bool(row.twin) == bool(row.equal_bytes)
    searched = {row.name for row in plan.searched}
    assert all(row.search in searched for row in plan.rows.values())


def test_a_twin_has_one_vector_and_an_equal_has_as_many_numbers(part):
    rows = part("results_dinov2_rows")
    plan, trial = rows.plan(), rows.Trial("1e-3", (0.0, 0.0), 1)
    encoder = "image.encoder={name: patch, model: dinov2-small, grid: 4, trainable: none}"

    def numbers(name):
        recipe = recipes.load(plan.rows[name].base, [encoder, *plan.settings(plan.rows[name], trial)])
        sets = recipe.image.sets
        return sets.get("k", 1) + sets.get("keep_global", False), recipe.dim

    for row in plan.rows.values():
        if row.kind == "set":
            count, dim = numbers(row.name)
            assert count > 1
            assert numbers(row.twin) == (1, dim)
            assert numbers(row.equal_bytes) == (1, count * dim)


def test_claims_name_rows_that_are_there(part):
    known = part("results_dinov2_rows").plan().rows
    assert [c for c in part("results_dinov2_claims").CLAIMS if not {c.a, c.b} <= known.keys()] == []


def test_verdicts_are_corrected_for_their_number(part):
    claims = part("results_dinov2_claims")
    # z of 4, -4, 2.2 and 0: the third is sure by itself (p = 0.03), and not as the third of four.
    differences = {"a": 4.0, "b": -4.0, "c": 2.2, "d": 0.0, "e": 9.0}
    made = tuple(claims.Claim(name, "", name, "x") for name in differences)

    def compare(a, b, metric):
        seeds = 1 if a == "e" else 3
        return {"mean": differences[a], "error": 1.0, "freedom": 1e6, "seeds": seeds, "interval": [0, 0]}

    found = {each["a"]: each for each in claims.judge(made, compare)}
    verdicts = {name: each["verdict"] for name, each in found.items()}
    unseen = claims.UNSEEN
    assert verdicts == {"a": claims.HELD, "b": claims.CONTRADICTED, "c": unseen, "d": unseen, "e": claims.OPEN}
    assert found["c"]["interval"][0] < 0 < found["c"]["interval"][1]  # of the level 1 - 0.05 / 2
    assert found["a"]["interval"] == pytest.approx([4 - 2.4977, 4 + 2.4977], abs=1e-3)  # 1 - 0.05 / 4


def test_figures_of_queries_have_intervals_over_their_items(part, tmp_path):
    differences, rng = part("results_differences"), np.random.default_rng(0)
    items, base = np.repeat(np.arange(50), 2), rng.uniform(0, 100, 100)
    for name, gain in (("a", 3.0), ("b", 0.0)):
        for seed in range(3):
            values = base + gain + rng.normal(size=100)
            np.savez(tmp_path / f"{name}{seed}.npz", **{"nouns.map": values, "nouns.items": items})
    files = [[tmp_path / f"{name}{seed}.npz" for seed in range(3)] for name in "ab"]
    found = differences.by_values(*files, "nouns.map")
    assert found["mean"] == pytest.approx(3, abs=0.5)
    assert found["interval"][0] > 2
    assert found["seeds"] == 3


def test_every_part_of_the_page_has_its_marks(part):
    page = part("results_dinov2_page")
    text = (ROOT / "docs" / part("results_page").PAGE).read_text(encoding="utf-8")
    for name in ("state", "rows", "sets", "claims", "search", *(f"figure-{name}" for name in page.ALT)):
        assert f"<!-- dinov2-{name} -->\n" in text
        assert f"<!-- /dinov2-{name} -->\n" in text
