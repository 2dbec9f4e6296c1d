"""`polysem compare` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from evaluation.sample_evaluations import from_scores
from evaluation.sample_photos import photos
from polysem.cli import app
from polysem.data import open_collection
from polysem.errors import ConfigError, InputError
from polysem.evaluation import protocols
from polysem.evaluation.reports.significance import intervals
from sample_data import precomp
from waiting import LONG


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """What `polysem eval --json` wrote of a set model and a single-vector model."""
    for name, skill, size in (("four", 2.0, 4), ("one", 1.0, 1)):
        found = from_scores(skill, name=name, facts={"set_sizes": (size, size)})
        found = replace(found, intervals=intervals(found, resamples=50))
        (tmp_path / f"{name}.json").write_text(json.dumps(found.as_dict()), encoding="utf-8")
    return str(tmp_path / "four.json"), str(tmp_path / "one.json")


@pytest.fixture
def scored(tmp_path: Path) -> tuple[str, str, str]:
    """A collection of thirty pictures with two captions each, and two score matrices of it."""
    data = tmp_path / "pictures"
    precomp(data, "test", 30, per_image=2)
    owners = np.repeat(np.arange(30), 2)
    noise = np.random.default_rng(0).normal(size=(30, 60))
    paths = []
    for name, skill in (("good", 4.0), ("bad", 0.0)):
        scores = noise.copy()
        scores[owners, np.arange(60)] += skill
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "scores.npy", scores)
        paths.append(str(tmp_path / name / "scores.npy"))
    return str(data), *paths


def test_files_of_evaluations_need_no_data(files: tuple[str, str]) -> None:
    found = run(*files)
    assert found.exit_code == 0, found.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in found.stdout.splitlines() if "│" in line]
    assert [row[:2] for row in rows] == [["four", "set 4"], ["one", "single"]]
    assert all(cell.startswith("**") for cell in rows[0][2:])
    assert all(cell.startswith("*") for cell in rows[1][2:])
    assert "toy test, 60×120, hit rate" in found.stdout
    assert "not tested" in found.stdout


def test_score_matrices_are_measured_and_tested(scored: tuple[str, str, str]) -> None:
    data, good, bad = scored
    found = run(good, bad, "--data", data, "--json")
    assert found.exit_code == 0, found.output
    (table,) = json.loads(found.stdout)["tables"]
    assert table["protocol"]["protocol"] == "pairs"
    first, second = table["rows"]
    assert (first["model"], second["model"]) == (good, bad)  # both files are called scores.npy
    assert second["cells"]["rsum"]["is_worse"]
    assert second["cells"]["rsum"]["p"] < 0.05
    low, high = first["cells"]["rsum"]["interval"]
    assert low <= first["cells"]["rsum"]["value"] <= high


@pytest.mark.parametrize(("form", "sign"), [("markdown", "| Model |"), ("latex", r"\toprule"), ("table", "│ four")])
def test_every_format_can_go_to_a_file(files: tuple[str, str], form: str, sign: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / "table.txt"
    found = run(*files, "--format", form, "--out", str(out))
    assert found.exit_code == 0, found.output
    assert sign in out.read_text(encoding="utf-8")
    assert [path.name for path in out.parent.iterdir()] == ["table.txt"]
    assert found.stdout == ""
    if form != "table":
        assert run(*files, "--format", form).stdout == out.read_text(encoding="utf-8")


def test_columns_can_be_chosen(files: tuple[str, str]) -> None:
    found = run(*files, "--columns", "i2t.map_at_r, t2i.map_at_r", "--format", "markdown")
    assert "| Model | Embedding | I→T mAP@R | T→I mAP@R |" in found.stdout


def test_different_protocols_get_different_tables_or_none(files: tuple[str, str], tmp_path: Path) -> None:
    other = tmp_path / "val.json"
    other.write_text(json.dumps(from_scores(1.0, name="val", split="val").as_dict()), encoding="utf-8")
    refused = run(*files, str(other))
    assert isinstance(refused.exception, InputError)
    assert "--separate" in str(refused.exception)
    tables = json.loads(run(*files, str(other), "--separate", "--json").stdout)["tables"]
    assert [(table["protocol"]["split"], len(table["rows"])) for table in tables] == [("test", 2), ("val", 1)]


def test_a_run_without_data_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    refused = run(str(tmp_path))
    assert isinstance(refused.exception, InputError)
    assert "--data is missing" in str(refused.exception)
    assert isinstance(run("a.json", "--format", "html").exception, ConfigError)


def test_the_help_has_an_example() -> None:
    assert "Example: polysem compare runs/vse-infty runs/dive --data scenes" in run("--help").stdout


def test_the_command_itself_loads_nothing_heavy() -> None:
    module = "polysem.cli.evaluation"
    probe = f"import sys, {module}; print([m for m in ('torch', 'numpy', 'rich.table') if m in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=LONG, check=True)
    assert finished.stdout == "[]\n"


def test_all_captions_of_an_image_are_compared(scored: tuple[str, str, str]) -> None:
    data, good, bad = scored
    found = run(good, bad, "--data", data, "--columns", "i2t.map_at_r, i2t.r_precision", "--json")
    assert found.exit_code == 0, found.output
    first, second = (row["cells"] for row in json.loads(found.stdout)["tables"][0]["rows"])
    for path in ("i2t.map_at_r", "i2t.r_precision"):
        assert first[path]["interval"][0] <= first[path]["value"] <= first[path]["interval"][1]
        assert first[path]["difference"] is None
        low, high = second[path]["difference"]
        assert low < second[path]["value"] - first[path]["value"] < high < 0
        assert second[path]["is_worse"]
    table = run(good, bad, "--data", data, "--columns", "i2t.map_at_r,i2t.r_precision").stdout
    assert "mAP@R" in table
    assert "R-Precision" in table


def test_queries_for_parts_are_compared(tmp_path: Path) -> None:
    collection, _ = photos()
    data = tmp_path / "photos"
    data.mkdir()
    for number, item in enumerate(collection):
        Image.new("RGB", (8, 8)).save(data / f"{number}.png")
        lines = [{"image": f"{number}.png", "caption": caption, "split": "test"} for caption in item.captions]
        with (data / "captions.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    queries = len(protocols.find("parts").gallery(open_collection(data)).captions)
    paths = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "scores.npy", np.random.default_rng(len(paths)).random((60, queries)))
        paths.append(str(tmp_path / name / "scores.npy"))
    found = run(*paths, "--data", str(data), "--protocol", "parts")
    assert found.exit_code == 0, found.output
    for part in ("nouns", "rare phrases", "mAP", "P@10", "bootstrapped over nouns", "truth by captions"):
        assert part in found.stdout
    alone = CliRunner().invoke(
        app, ["eval", paths[0], "--data", str(data), "--protocol", "parts", "--option", "rare=12", "--json"]
    )
    result = json.loads(alone.stdout)
    assert {"nouns.map", "nouns.precision10", "phrases.map", "rare_nouns.map"} <= result["metrics"].keys()
    assert set(result["intervals"]) >= {"nouns.map", "phrases.precision10"}
    assert result["protocol"]["resampled"] == "nouns"
    written = tmp_path / "one.json"
    written.write_text(alone.stdout, encoding="utf-8")
    again = run(str(written), "--columns", "nouns.map,rare_nouns.map")
    assert again.exit_code == 0, again.output
    shown = CliRunner().invoke(app, ["eval", paths[0], "--data", str(data), "--protocol", "parts"])
    assert "rare nouns" in shown.stdout
    assert "precision@10" in shown.stdout
