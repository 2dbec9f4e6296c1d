"""The second half of docs/benchmarks/results.md, over EfficientNet grids: its experiment runs whole, resumes, and its
page says what it measured."""

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
from polysem.data import open_collection
from training.small import TINY, make_data

pytestmark = [pytest.mark.benchmarks, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
MODULES = ("efficientnet", "claims", "costs", "differences", "figures", "page", "rows", "run", "summary")
PADDED = ("image.sets.knobs.variant=official", "text.sets.knobs.variant=official")
ROWS = {
    "common": [*(setting for setting in TINY if "epochs" not in setting)],
    "rows": [
        {"name": "vse-infty", "label": "VSE∞", "base": "vse-infty", "groups": ["methods", "objectives"]},
        {
            **{"name": "vse-2ad", "label": "VSE+2AD", "base": "vse-2ad", "keeps_scores": True},
            "groups": ["methods", "objectives", "ensembles", "defects"],
        },
        {
            **{"name": "adpool-official", "label": "padded", "base": "vse-2ad", "groups": ["defects"]},
            **{"read_as": "vse-2ad", "settings": PADDED},
        },
        {"name": "long-adopt", "label": "AdOpt", "base": "vse-2ad", "groups": ["convergence"], "longer": 2},
    ],
}


@pytest.fixture(scope="module")
def part():
    """A module of the benchmark by the rest of its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield lambda name: importlib.import_module(f"results_{name}")
    for name in MODULES:
        sys.modules.pop(f"results_{name}", None)


@pytest.fixture(scope="module")
def finished(part, tmp_path_factory):
    """Two seeds of the rows above, in two goes: two tables of one seed first, in processes of their own."""
    place = tmp_path_factory.mktemp("results")
    make_data(place / "data")
    (place / "rows.json").write_text(json.dumps(ROWS))
    page = place / "docs" / part("page").PAGE
    page.parent.mkdir(parents=True)
    page.write_text((ROOT / "docs" / part("page").PAGE).read_text(encoding="utf-8"), encoding="utf-8")
    told = [go(part, place, "--only", "objectives", "--seeds", "1", "--jobs", "1"), go(part, place)]
    return place, told


def go(part, place, *options):
    """The command, as far as its own process goes."""
    command = ["--data", str(place / "data"), "--out", str(place / "runs"), "--rows", str(place / "rows.json")]
    command += ["--output", str(place / "results.json"), "--docs", str(place / "docs"), "--epochs", "2"]
    command += options or ("--seeds", "2", "--jobs", "0")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as told:
        patch.setattr(sys, "argv", ["results_efficientnet.py", *command])
        part("efficientnet").main()
    return told.getvalue()


def test_finished_runs_are_not_repeated(part, finished):
    place, (first, second) = finished
    assert first.startswith("2 runs to do")
    assert second.startswith("6 runs to do")  # of eight: two seeds of four rows, two of them in two tables
    before = {path: path.stat().st_mtime_ns for path in (place / "runs").glob("*.json")}
    assert len(before) == 9  # and the costs
    assert go(part, place).startswith("0 runs to do")
    assert {path: path.stat().st_mtime_ns for path in (place / "runs").glob("*.json")} == before


def test_seed_0_of_everything_comes_first(part, finished, tmp_path):
    (place, _), benchmark = finished, part("efficientnet")
    plan = benchmark.results_rows.plan(2, place / "rows.json")
    bench = benchmark.Bench(plan, open_collection(place / "data"), (None, None), None, tmp_path)
    jobs = [(row.name, seed) for row, seed in benchmark.wanted(bench, ("methods", "defects"), 2)]
    names = ["vse-infty", "vse-2ad", "adpool-official"]
    assert jobs == [(name, seed) for seed in range(2) for name in names]


def test_the_pages_say_what_the_json_says(part, finished):
    place, _ = finished
    entry = json.loads((place / "results.json").read_text())
    page = (place / "docs" / part("page").PAGE).read_text(encoding="utf-8")
    assert "**8 of 8 runs** (4 rows × 2 seeds)" in page
    for name in ("vse-infty", "vse-2ad"):
        row = entry["rows"][name]
        (mean, spread), runs = row["mean"]["rsum"], [cell["figures"]["rsum"] for cell in row["runs"]]
        assert mean == pytest.approx(sum(runs) / 2)
        assert re.search(rf"\| {re.escape(row['label'])} \| 2 \| \**{mean:.1f} ± {spread:.1f}\** \|", page)
    claim = next(each for each in entry["claims"] if (each["a"], each["b"]) == ("vse-2ad", "vse-infty"))
    low, high = claim["interval"]
    wanted = entry["rows"]["vse-2ad"]["mean"]["rsum"][0] - entry["rows"]["vse-infty"]["mean"]["rsum"][0]
    assert claim["mean"] == pytest.approx(wanted)
    assert claim["verdict"] == ("held" if low > 0 else "did not hold" if high < 0 else "within noise")
    assert f"{claim['mean']:+.1f} [{low:+.1f}, {high:+.1f}] | 2 |" in page
    assert "VSE+2AD, first grid, two seeds | 1 |" in page  # of two seeds there is one pair
    by_hand = re.search(r"### What surprised us\n.*?\n### ", (ROOT / "docs" / part("page").PAGE).read_text(), re.DOTALL)
    assert by_hand is not None
    assert by_hand[0] in page
    assert "(../images/results-efficientnet-differences.png)" in page
    assert (place / "docs" / "images" / "results-efficientnet-differences.png").stat().st_size > 5000
    assert "1.00 ×" in page
    assert "at most (2 runs)" in page  # of those that were validated more than once


def test_the_page_of_defects_says_what_correcting_is_worth(part, finished):
    place, _ = finished
    entry = json.loads((place / "results.json").read_text())
    (defect,) = entry["defects"]
    right, wrong = (entry["rows"][name]["runs"] for name in ("vse-2ad", "adpool-official"))
    each = [one["figures"]["rsum"] - other["figures"]["rsum"] for one, other in zip(right, wrong, strict=True)]
    assert defect["worth"]["each"] == pytest.approx(each, abs=1e-3)
    read = np.mean([cell["read_as"]["rsum"] - cell["figures"]["rsum"] for cell in wrong])
    assert defect["at_test_alone"][0] == pytest.approx(read)
    page = (place / "docs" / part("page").PAGE).read_text(encoding="utf-8")
    assert f"| {np.mean(each):+.1f} [" in page
    assert f"| {read:+.1f} |" in page


def test_the_last_weights_are_measured_and_never_the_best(finished):
    place, _ = finished
    entry = json.loads((place / "results.json").read_text())
    for row in entry["rows"].values():
        for cell in row.get("runs", ()):
            assert "no split" in cell["protocol"]
            assert cell["figures"]["rsum"] == pytest.approx(cell["validations"][-1]["rsum"], abs=1e-6)
            assert len(cell["validations"]) == (4 if row["longer"] > 1 else 1)


def test_only_the_diary_stays_of_a_finished_run(finished):
    place, _ = finished
    folders = [path for path in (place / "runs").iterdir() if path.is_dir()]
    assert len(folders) == 8
    assert {path.name for folder in folders for path in folder.iterdir()} == {"metrics.jsonl"}


def test_an_ensemble_is_the_mean_of_both_scores(finished):
    place, _ = finished
    entry = json.loads((place / "results.json").read_text())
    scores = [np.load(path) for path in sorted((place / "runs").glob("*.npy"))]
    assert len(scores) == 2
    mean = (scores[0].astype(np.float64) + scores[1]) / 2
    owners = np.repeat(np.arange(8), 5)
    found = 100 * np.mean(mean.argmax(0) == owners)
    assert entry["rows"]["vse-2ad twice"]["mean"]["t2i.r1"][0] == pytest.approx(found)


def test_another_rate_stands_beside(part, finished):
    place, _ = finished
    slow = json.loads((place / "results.json").read_text())
    slow["common"] = [*slow["common"], "optimiser.lr=5e-6"]
    for number, row in enumerate(slow["rows"].values(), 1):
        row["seeds"] = [0]
        row["mean"]["rsum"][0] = float(number)
    (place / "slow.json").write_text(json.dumps(slow))
    go(part, place, "--seeds", "2", "--pages-only", "--beside", str(place / "slow.json"))
    page = (place / "docs" / part("page").PAGE).read_text(encoding="utf-8")
    entry = json.loads((place / "results.json").read_text())
    first = entry["rows"]["vse-infty"]["runs"][0]["figures"]["rsum"]  # the seed that both have
    assert f"| VSE∞ | 1.0 | {first:.1f} | {first - 1:+.1f} |" in page
    assert "| | RSUM at 5e-6 | at the recipes' rates | gain |" in page


def test_a_setting_of_all_rows_is_laid_over_what_they_share(part):
    plan = part("rows").plan(3, more=["optimiser.lr=5e-4"])
    assert {recipes.load(row.base, plan.settings(row)).optimiser.lr for row in plan.rows.values()} == {5e-4}


# ------------------------------------------------------------------------------------------------- rows and the rule


def test_every_row_is_a_recipe_that_can_be_built(part):
    rows = part("rows")
    plan = rows.plan(5)
    assert len(plan.rows) == len(rows.ROWS)
    for row in rows.ROWS:
        recipe = recipes.load(row.base, plan.settings(row))
        assert recipe.training.epochs == 5 * row.longer
        assert (recipe.training.batch, recipe.training.captions, recipe.optimiser.lr) == (64, "all", 2e-3)
        assert set(row.groups) <= set(rows.GROUPS)
    assert recipes.load("small-vse-2ad", plan.settings(plan.rows["decay-compounding"])).schedule.every == 6


def test_tables_claims_and_defects_name_rows_that_are_there(part):
    rows, claims = part("rows"), part("claims")
    known = {row.name: set(row.groups) for row in rows.ROWS}
    joined = {ensemble.name for ensemble in rows.ENSEMBLES}
    for group, table in rows.TABLES.items():
        assert group in known[table.reference]
    for claim in claims.CLAIMS:
        assert {claim.a, claim.b or claim.a} <= known.keys() | joined
    for defect in claims.DEFECTS:
        assert "defects" in known[defect.wrong] & known[defect.right]
    assert set(rows.COSTED) <= known.keys()


def test_every_part_of_the_pages_has_its_marks(part):
    text = (ROOT / "docs" / part("page").PAGE).read_text(encoding="utf-8")
    parts = [*part("rows").TABLES, "state", "claims", "cost", "defects", "flattery", "convergence-negatives", "rates"]
    for name in [*parts, *(f"figure-{name}" for name in part("page").ALT)]:
        assert f"<!-- {name} -->\n" in text
        assert f"<!-- /{name} -->\n" in text


def test_the_rule(part):
    verdict = part("claims").verdict
    assert verdict((0.1, 2), 3) == "held"
    assert verdict((-2, -0.1), 3) == "did not hold"
    assert verdict((-1, 2), 3) == "within noise"
    assert verdict((0.1, 2), 1) == verdict(None, 3) == "not judged yet"


def test_a_claim_of_at_most_is_judged_from_the_other_side(part):
    claims = part("claims")
    claim = claims.Claim("few", "", "a", None, metric="negatives", limit=5.5)
    for interval, wanted in (([3, 5], "held"), ([50, 60], "did not hold"), ([4, 7], "within noise")):
        found = claims.judge((claim,), lambda *_, held=interval: {"mean": 1, "interval": held, "seeds": 3})
        assert found[0]["verdict"] == wanted


def test_intervals_widen_with_seeds_that_disagree(part, tmp_path):
    differences, rng = part("differences"), np.random.default_rng(0)
    items = {"i2t": np.arange(200), "t2i": np.repeat(np.arange(200), 5)}

    def ranks(name, shift):
        kept = {way: np.clip(rng.integers(0, 20, len(ids)) + shift, 0, None) for way, ids in items.items()}
        np.savez(tmp_path / name, **kept, **{f"{way}.items": ids for way, ids in items.items()})
        return tmp_path / name

    worse = [ranks(f"a{seed}.npz", 0) for seed in range(3)]
    steady = differences.by_queries([ranks(f"b{seed}.npz", -4) for seed in range(3)], worse)
    shaky = differences.by_queries([ranks(f"c{seed}.npz", shift) for seed, shift in enumerate((0, -4, -8))], worse)
    assert steady["interval"][0] > 0
    assert steady["mean"] == pytest.approx(np.mean(steady["each"]), abs=1e-3)
    width = [found["interval"][1] - found["interval"][0] for found in (steady, shaky)]
    assert width[1] > 3 * width[0]
    assert shaky["share_of_seeds"] > 0.9
    same = differences.by_queries(worse, worse)
    assert (same["mean"], same["interval"]) == (0, [0, 0])
    assert differences.by_seeds([1.0])["interval"] is None
    assert differences.by_seeds([1.0, 2.0, 3.0])["interval"] == pytest.approx([2 - 2.484, 2 + 2.484], abs=1e-3)


def test_a_run_that_ran_away_is_told_and_not_averaged(part):
    page = part("page")
    row = {"label": "odd", "groups": ["slots"], "seeds": [0, 1], "stopped": ["NaN", "NaN"], "mean": {}, "ensemble": 0}
    line = list(page.table({"rows": {"odd": row}}, "slots"))[-1]
    assert line == "| odd (weights ran away in 2 of 2) | 2 | – | – | – | – | – |"
