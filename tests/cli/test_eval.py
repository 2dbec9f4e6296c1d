"""`polysem eval` as a user meets it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from polysem import recipes
from polysem.cli import app
from polysem.errors import InputError, PolysemError
from polysem.training import train
from training.small import TINY, make_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "vse"
    train(recipes.load("vse-infty", TINY), data, out, tracker=None)
    return out


def call(*arguments: object):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


@pytest.mark.slow
def test_a_run_is_measured_as_its_training_did(run, data):
    found = call(run, "--data", data, "--split", "val", "--json")
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    best = json.loads((run / "run.json").read_text())["best"]
    assert result["metrics"]["rsum"] == pytest.approx(best["rsum"], abs=1e-9)
    assert result["metrics"]["i2t"]["r1"] == pytest.approx(best["i2t"]["r1"], abs=1e-9)
    assert result["protocol"]["stamp"] == "toy val, 8×40, hit rate, inductive, selected on val"


@pytest.mark.slow
def test_the_table_bears_its_stamp(run, data):
    found = call(run, "--data", data, "--split", "val")
    assert found.exit_code == 0, found.output
    assert "image → text" in found.stdout
    assert "RSUM" in found.stdout
    assert "[toy val, 8×40, hit rate, inductive, selected on val]" in found.stdout


@pytest.mark.slow
def test_a_matrix_and_an_ensemble(run, data, tmp_path):
    scores = tmp_path / "scores.npy"
    np.save(scores, np.random.default_rng(0).random((8, 40)))
    alone = call(scores, "--data", data, "--split", "val", "--json")
    assert alone.exit_code == 0, alone.output
    both = call(scores, run, "--ensemble", "mean", "--data", data, "--split", "val", "--json")
    assert json.loads(both.stdout)["protocol"]["members"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a", "b"], "--ensemble mean"),
        (["a", "--ensemble", "max"], "takes mean"),
        (["a", "--protocol", "coco"], "coco-5k"),
        (["a", "--option", "folds"], "KEY=VALUE"),
        (["a", "--option", "folts=5"], "folds"),
    ],
)
def test_mistakes(arguments, says, data):
    with pytest.raises(PolysemError, match=says) as error:
        CliRunner().invoke(app, ["eval", *arguments, "--data", str(data)], catch_exceptions=False)
    assert "\n" not in str(error.value)


def test_a_folder_that_holds_no_model(data, tmp_path):
    with pytest.raises(PolysemError, match="holds no model"):
        CliRunner().invoke(app, ["eval", str(tmp_path), "--data", str(data)], catch_exceptions=False)
    with pytest.raises(InputError, match="Cannot read scores"):
        CliRunner().invoke(app, ["eval", str(tmp_path / "x.npy"), "--data", str(data)], catch_exceptions=False)
