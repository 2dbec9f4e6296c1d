"""`polysem cost` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from polysem.cli import app
from polysem.errors import UnknownNameError
from waiting import LONG

QUICK = ("--queries", "6", "--gallery", "12", "--repeats", "1")
SINGLE = "extends: vse-infty\ndim: 8\nimage: {encoder: {input_dim: 10}}\ntext: {encoder: {word_dim: 4}}\n"
SETS = """extends: dive
dim: 8
image: {encoder: {input_dim: 10}, sets: {heads: 2, head_dim: 4}}
text: {encoder: {word_dim: 4}, sets: {heads: 2, head_dim: 4}}
"""


@pytest.fixture
def recipes(tmp_path: Path) -> tuple[str, str]:
    """A model of one vector and one of four, too small to take time."""
    for name, text in (("one", SINGLE), ("four", SETS)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return str(tmp_path / "one.yaml"), str(tmp_path / "four.yaml")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cost", *arguments], env={"COLUMNS": "200"})


def test_the_json_holds_every_model_and_how_it_was_measured(recipes: tuple[str, str]) -> None:
    found = run(*recipes, *QUICK, "--json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert (report["queries"], report["gallery"], report["top"], report["repeats"]) == (6, 12, 10, 1)
    one, four = report["models"]
    assert one["is_reference"]
    assert (one["flops"], four["flops"]) == (16, 2 * 16 * 8 + 4 * 16 + 8 + 2)
    assert four["relative"]["flops"] == four["flops"] / one["flops"]
    assert four["relative"]["bytes"] == 4


def test_the_table_shows_a_column_per_model_with_ratios_and_assumptions(recipes: tuple[str, str]) -> None:
    found = run(*recipes, *QUICK)
    assert found.exit_code == 0, found.output
    rows = {cells[1].strip(): cells[2:4] for line in found.stdout.splitlines() if len(cells := line.split("│")) == 5}
    assert [cell.strip() for cell in rows["FLOPs per pair"]] == ["16 ×1.00", "330 ×20.6"]
    assert [cell.strip() for cell in rows["Bytes per image"]] == ["32 ×1.00", "128 ×4.00"]
    assert [cell.strip() for cell in rows["Vectors per image"]] == ["1 of 8", "4 of 8"]
    assert "text.encoder.vocab_size=10000" in found.stdout
    assert f"relative to {recipes[0]}" in found.stdout.replace("\n", "")


def test_without_a_single_vector_model_the_table_has_a_column_for_one(recipes: tuple[str, str]) -> None:
    found = run(recipes[1], *QUICK)
    assert found.exit_code == 0, found.output
    assert "relative to single vector (D=8)" in found.stdout


def test_an_unknown_model_is_refused_with_what_exists() -> None:
    refused = run("small-divee")
    assert isinstance(refused.exception, UnknownNameError)
    assert "Did you mean 'small-dive'?" in str(refused.exception)


def test_the_help_has_an_example() -> None:
    assert "Example: polysem cost small-vse-infty small-dive" in run("--help").stdout


def test_the_command_itself_loads_nothing_heavy() -> None:
    module = "polysem.cli.evaluation"
    probe = f"import sys, {module}; print([m for m in ('torch', 'pydantic', 'rich.table') if m in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=LONG, check=True)
    assert finished.stdout == "[]\n"
