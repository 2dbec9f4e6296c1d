"""`polysem sweep` as a user meets it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from polysem.cli import app
from polysem.errors import ConfigError, UnknownNameError
from polysem.training.loop import TrainingLoop
from training.small import TINY, make_data

SETTINGS = [argument for override in (*TINY[:-1], "training.epochs=1") for argument in ("--set", override)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "toy")


def run(*arguments: object):
    return CliRunner().invoke(app, ["sweep", "vse-infty", *map(str, arguments), "--tracker", "none", *SETTINGS])


@pytest.mark.slow
def test_it_shows_a_table_and_goes_on(data, tmp_path):
    where = ("--data", data, "--out", tmp_path / "sweep", "--seeds", "0,1")
    found = run(*where, "--set", "optimiser.lr=1e-3,1e-2")
    assert found.exit_code == 0, found.output
    assert "vse-infty on toy" in found.stdout
    assert "±" in found.stdout
    assert "toy val, 8×40" in found.stdout
    assert "sweep.png shows the curve" in found.stdout
    assert "Run 4 of 4: optimiser.lr=0.01, seed 1" in found.stderr
    again = run(*where, "--set", "optimiser.lr=1e-2,1e-3", "--json")
    assert again.exit_code == 0, again.output
    assert again.stderr.count("Finished earlier.") == 4
    result = json.loads(again.stdout)
    assert [row["values"] for row in result["table"]] == [{"optimiser.lr": 0.001}, {"optimiser.lr": 0.01}]
    assert result["table"][0]["std"]["rsum"] >= 0
    assert result["out"] == str(tmp_path / "sweep")


def test_the_exit_code_tells_of_a_run_that_failed(data, tmp_path):
    found = run("--data", data, "--out", tmp_path / "sweep", "--set", "training.accumulate=1,100", "--metric", "i2t.r1")
    assert found.exit_code == 1
    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert "training.accumulate=100, seed 0: failed" in found.stdout
    assert "i2t.r1" in found.stdout
    assert "–" in found.stdout


def test_an_interruption_says_how_to_go_on(data, tmp_path, monkeypatch):
    def interrupted(self, *rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainingLoop, "take_step", interrupted)
    found = run("--data", data, "--out", tmp_path / "sweep", "--set", "optimiser.lr=1e-3,1e-2")
    assert found.exit_code == 130
    assert "run the same command to go on" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ([], ConfigError, "Nothing to sweep"),
        (["--set", "training.epoch=1,2"], ConfigError, "Did you mean 'epochs'"),
        (["--set", "optimiser.lr=1,1.0"], ConfigError, "same value"),
        (["--set", "optimiser.lr="], ConfigError, "there is no value"),
        (["--set", "optimiser.lr=1,2", "--seeds", "0,x"], ConfigError, "whole numbers"),
        (["--set", "optimiser.lr=1,2", "--seeds", "-1"], ConfigError, "whole numbers"),
        (["--set", "optimiser.lr=1,2", "--option", "k=5"], ConfigError, "--protocol"),
        (["--set", "optimiser.lr=1,2", "--protocol", "label"], UnknownNameError, "labels"),
        (["--set", "optimiser.lr=1,2", "--metric", "rsums"], UnknownNameError, "Did you mean 'rsum'"),
        (["--set", "optimiser.lr=1,2", "--on-collapse", "pray"], ConfigError, "stop or warn"),
    ],
)
def test_a_mistake_is_named_before_anything_is_made(arguments, error, says, data, tmp_path):
    found = run("--data", data, "--out", tmp_path / "sweep", *arguments)
    assert isinstance(found.exception, error), found.exception
    assert says in str(found.exception)
    assert not (tmp_path / "sweep").exists()


def test_the_help_has_the_example():
    found = CliRunner().invoke(app, ["sweep", "--help"], env={"COLUMNS": "200"})
    assert "--set objective.lambda=0,0.001,0.01,0.1,1,10" in found.stdout
