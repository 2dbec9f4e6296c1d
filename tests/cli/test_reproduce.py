"""`polysem reproduce` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from polysem.cli import app
from polysem.errors import ConfigError, UnknownNameError
from polysem.reproduction import gpo_synthetic

QUICK = ("--steps", 2, "--workers", 1)


def run(*arguments: object):
    return CliRunner().invoke(app, ["reproduce", "gpo-synthetic", *map(str, arguments)], env={"COLUMNS": "120"})


@pytest.mark.slow
def test_the_table_stands_beside_the_papers(tmp_path):
    found = run("--design", "interp", "--pattern", "A", "--pattern", "M-1", "--out", tmp_path / "gpo", *QUICK)
    assert found.exit_code == 0, found.output
    assert ".0000 (.000) ✓" in found.stdout
    assert "(.065) >" in found.stdout
    assert "of 6 cells" in found.stdout
    assert "<svg" in (tmp_path / "gpo" / "gpo-synthetic.html").read_text()


def test_json_is_one_object_and_the_same_as_in_the_folder(tmp_path):
    found = run("--design", "interp", "--pattern", "A", "--seeds", 2, "--out", tmp_path, "--json", *QUICK)
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer == json.loads((tmp_path / "gpo-synthetic.json").read_text())
    assert answer["met"] == {"interp": "3 of 3"}
    assert [cell["sizes"] for cell in answer["cells"]] == ["seen", "smaller", "larger"]
    assert answer["seeds"] == 2


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["--design", "cos-sin-gru"], UnknownNameError, "Did you mean 'cos-sin-bigru'"),
        (["--pattern", "M-5"], UnknownNameError, "Known: A, L, M-1, M-10, T-50%"),
        (["--out", __file__], ConfigError, "is a file"),
    ],
)
def test_a_mistake_is_named_before_anything_is_trained(arguments, error, says):
    found = run(*arguments, *QUICK)
    assert isinstance(found.exception, error), found.exception
    assert says in str(found.exception)


def test_ctrl_c_ends_it_without_a_traceback(monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpo_synthetic, "train_and_measure", interrupted)
    found = run("--design", "interp", "--pattern", "A", "--out", tmp_path / "gpo", *QUICK)
    assert found.exit_code == 130
    assert "Interrupted" in found.stderr
    assert not (tmp_path / "gpo").exists()


def test_its_help_carries_an_example():
    assert "Example: polysem reproduce gpo-synthetic" in run("--help").stdout
