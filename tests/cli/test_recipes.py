"""`polysem recipes`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from polysem import recipes
from polysem.cli.recipes import group
from polysem.errors import ConfigError, UnknownNameError
from waiting import LONG


def run(*arguments: str) -> Result:
    return CliRunner().invoke(group, list(arguments), env={"COLUMNS": "160"})


def test_the_list_names_every_recipe_with_its_summary_row_epochs_and_batch() -> None:
    shown = run()
    assert shown.exit_code == 0, shown.output
    lines = [line.split("│") for line in shown.stdout.splitlines() if line.startswith("│")]
    listed = [line[1].strip() for line in lines if line[1].strip()]
    assert sorted(listed) == list(recipes.names())
    dive = next(place for place, line in enumerate(lines) if line[1].strip() == "dive")
    assert [cell.strip() for cell in lines[dive][3:5]] == ["80", "200 × all"]
    recipe = recipes.load("dive")
    assert recipe.summary in shown.stdout
    assert recipe.paper in shown.stdout


def test_the_list_as_json_holds_every_recipe_resolved() -> None:
    listed = json.loads(run("--json").stdout)
    assert sorted(entry["name"] for entry in listed) == list(recipes.names())
    dive = next(entry for entry in listed if entry["name"] == "dive-f30k")
    assert recipes.parse(dive) == recipes.load("dive-f30k")


def test_a_recipe_is_printed_as_it_stands_comments_included() -> None:
    shown = run("show", "vse-infty-grid-bigru")
    assert shown.stdout == recipes.source("vse-infty-grid-bigru")
    assert shown.stdout.startswith("#")


def test_resolved_is_yaml_that_loads_as_the_same_recipe(tmp_path: Path) -> None:
    shown = run("show", "dive-f30k", "--resolved")
    (tmp_path / "again.yaml").write_text(shown.stdout, encoding="utf-8")
    assert recipes.load(tmp_path / "again.yaml") == recipes.load("dive-f30k")
    assert "extends" not in yaml.safe_load(shown.stdout)


def test_overrides_are_shown_resolved() -> None:
    shown = yaml.safe_load(run("show", "dive", "--set", "training.epochs=5", "--set", "dim=64").stdout)
    assert (shown["training"]["epochs"], shown["dim"]) == (5, 64)
    as_json = json.loads(run("show", "dive", "--json", "--set", "training.epochs=5").stdout)
    assert as_json["training"]["epochs"] == 5


def test_a_users_file_is_shown_like_a_recipe_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: dive\ndim: 64\n", encoding="utf-8")
    assert run("show", str(path)).stdout == "extends: dive\ndim: 64\n"
    assert yaml.safe_load(run("show", str(path), "--resolved").stdout)["name"] == "mine"


def test_on_a_terminal_the_yaml_is_coloured_and_still_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = run("show", "dive")
    assert "\x1b[" in shown.stdout
    assert "smooth_chamfer" in shown.stdout


def test_an_unknown_name_gives_the_nearest() -> None:
    assert "Did you mean 'vse-infty'?" in str(run("show", "vse-inftyy").exception)
    assert isinstance(run("show", "vse-inftyy").exception, UnknownNameError)


def test_an_override_that_does_not_fit_is_refused() -> None:
    refused = run("show", "dive", "--set", "training.epochs=none")
    assert isinstance(refused.exception, ConfigError)
    assert "training.epochs" in str(refused.exception)


def test_the_command_itself_loads_nothing_heavy() -> None:
    probe = "import sys, polysem.cli.recipes; print([m for m in ('torch', 'pydantic', 'yaml') if m in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=LONG, check=True)
    assert finished.stdout == "[]\n"
