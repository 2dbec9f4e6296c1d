"""`polysem finetune` as a user meets it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import polysem
from polysem.cli import app
from polysem.errors import ConfigError, InputError, PolysemError
from polysem.training import train
from training.small import make_data, tiny


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "run"
    train(tiny("vse-infty", "training.epochs=8", "optimiser.lr=1e-2"), data, out, tracker=None)
    return out


def run(*arguments: object):
    return CliRunner().invoke(app, ["finetune", *map(str, arguments)])


QUICK = ("--tracker", "none", "--set", "training.batch=6", "--set", "training.epochs=2")


@pytest.mark.slow
def test_it_trains_a_model_further_and_says_what_it_began_with(data, model, tmp_path):
    found = run(model, "--data", data, "--out", tmp_path / "run", *QUICK)
    assert found.exit_code == 0, found.output
    assert f"Started from {model}" in " ".join(found.output.split())
    assert "Validation RSUM" in found.stdout
    again = run(model, "--data", data, "--out", tmp_path / "run", *QUICK, "--json")
    result = json.loads(again.stdout)
    assert result["best"]["rsum"] >= polysem.load(model).provenance["validation"]["rsum"]
    assert result["status"] == "finished"
    assert result["start_rsum"] == polysem.load(model).provenance["validation"]["rsum"]


@pytest.mark.slow
def test_it_says_that_the_start_was_not_bettered(data, model, tmp_path):
    absurd = ["--set", "optimiser.lr=10", "--set", "optimiser.clip=0.1", "--set", "schedule.name=constant"]
    found = run(model, "--data", data, "--out", tmp_path / "run", *QUICK, *absurd)
    assert "the start, which training did not better" in " ".join(found.stdout.replace("│", "").split())


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["./nowhere/at/all"], PolysemError, "no such folder"),
        (["small-vse-infty"], ConfigError, "is a recipe"),
        (["MODEL", "--set", "training.epoch=3"], ConfigError, "Did you mean 'epochs'"),
        (["MODEL", "--out", "MODEL"], InputError, "a run of another command"),
    ],
)
def test_a_mistake_is_named_before_anything_is_made(arguments, error, says, data, model, tmp_path):
    given = [str(model) if each == "MODEL" else each for each in arguments]
    found = run(given[0], "--data", data, "--out", tmp_path / "run", *given[1:])
    assert isinstance(found.exception, error), found.exception
    assert says in str(found.exception)
    assert not (tmp_path / "run").exists()
