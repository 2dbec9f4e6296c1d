import json

import pytest
from typer.testing import CliRunner

from polysem.cli import app
from polysem.synthetic import dataset_folder
from polysem.synthetic.clips import make
from synthetic.fake_art import fake_art, fake_kinds

COMMAND = ["data", "make", "emoji-clips"]


@pytest.fixture(autouse=True)
def _discs(monkeypatch):
    monkeypatch.setattr(make, "load_kinds", fake_kinds)
    monkeypatch.setattr(make, "openmoji_art", lambda pixels: fake_art())
    monkeypatch.setattr(dataset_folder, "installed_version", lambda package: "1.0")


def test_the_command_makes_the_set_and_says_so(tmp_path):
    out = tmp_path / "clips"
    result = CliRunner().invoke(app, [*COMMAND, "--out", str(out), "--items", "2", "--seed", "3", "--size", "64"])
    assert result.exit_code == 0, result.output
    assert "2 emoji clips, 10 captions" in result.stdout
    assert len(list((out / "videos").glob("*.mp4"))) == 2


def test_json_is_all_there_is_on_stdout(tmp_path):
    out = tmp_path / "clips"
    result = CliRunner().invoke(app, [*COMMAND, "--out", str(out), "--items", "1", "--size", "64", "--json"])
    assert json.loads(result.stdout) == {
        "dataset": "emoji-clips",
        "path": str(out),
        "items": 1,
        "seed": 0,
        "size": 64,
    }
