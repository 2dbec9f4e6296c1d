"""`polysem train` as a user meets it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from polysem.cli import app
from polysem.errors import ConfigError, InputError, UnknownNameError
from training.small import TINY, make_data

SETTINGS = [argument for override in TINY for argument in ("--set", override)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "toy")


def run(*arguments: object):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


@pytest.mark.slow
def test_it_trains_and_says_what_came_of_it(data, tmp_path):
    found = run("vse-infty", "--data", data, "--out", tmp_path / "run", *SETTINGS)
    assert found.exit_code == 0, found.output
    assert "Validation RSUM" in found.stdout
    assert "toy val, 8×40" in found.stdout
    assert "polysem.load(" in found.stdout
    assert list((tmp_path / "run" / "tensorboard").rglob("events.*"))


@pytest.mark.slow
def test_the_result_as_json(data, tmp_path):
    found = run("vse-infty", "--data", data, "--out", tmp_path / "run", "--tracker", "none", "--json", *SETTINGS)
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert result["status"] == "finished"
    assert result["best"]["rsum"] > 0
    assert not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.slow
def test_a_recipe_of_ones_own(data, tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: vse-infty\nsummary: mine\nimage: {sets: {pooling: mean}}\n")
    found = run(tmp_path / "mine.yaml", "--data", data, "--out", tmp_path / "run", "--tracker", "none", *SETTINGS)
    assert found.exit_code == 0, found.output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]["image"]["sets"]["pooling"] == "mean"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["vse-inft"], UnknownNameError, "Did you mean 'vse-infty'"),
        (["vse-infty", "--set", "training.epoch=3"], ConfigError, "Did you mean 'epochs'"),
        (["vse-infty", "--set", "training.epochs=many"], ConfigError, "training.epochs"),
        (["vse-infty", "--set", "similarity.name=smooth_chamfe"], UnknownNameError, "smooth_chamfer"),
        (["dive", "--set", "similarity.name=cosine"], ConfigError, "sets of 4"),
        (["vse-infty", "--on-collapse", "pray"], ConfigError, "stop or warn"),
        (["vse-infty", "--tracker", "notebook"], ConfigError, "notebook"),
    ],
)
def test_a_mistake_is_named_before_anything_is_made(arguments, error, says, data, tmp_path):
    found = run(*arguments, "--data", data, "--out", tmp_path / "run")
    assert isinstance(found.exception, error), found.exception
    assert says in str(found.exception)
    assert not (tmp_path / "run").exists()


def test_data_that_is_not_there(tmp_path):
    found = run("vse-infty", "--data", tmp_path / "nothing", "--out", tmp_path / "run")
    assert "no such file or folder" in str(found.exception)


def test_features_for_an_encoder_that_trains_are_refused(data, tmp_path):
    found = run("vse-infty", "--data", data, "--out", tmp_path / "run", "--features", tmp_path / "f", *SETTINGS)
    assert isinstance(found.exception, (ConfigError, InputError))
    assert "Leave the option out" in str(found.exception)
