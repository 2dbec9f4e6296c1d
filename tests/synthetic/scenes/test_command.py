import json

import pytest
import typer
from typer.testing import CliRunner

from polysem.cli.data import make_emoji_scenes_command
from polysem.synthetic import dataset_folder
from polysem.synthetic.scenes import make
from synthetic.fake_art import fake_art, fake_kinds

app = typer.Typer()
app.command()(make_emoji_scenes_command)


@pytest.fixture(autouse=True)
def _discs(monkeypatch):
    monkeypatch.setattr(make, "load_kinds", fake_kinds)
    monkeypatch.setattr(make, "openmoji_art", lambda pixels: fake_art())
    monkeypatch.setattr(dataset_folder, "installed_version", lambda package: "1.0")


def test_the_command_makes_the_set_and_says_so(tmp_path):
    out = tmp_path / "scenes"
    result = CliRunner().invoke(app, ["--out", str(out), "--items", "10", "--seed", "3", "--size", "64"])
    assert result.exit_code == 0, result.output
    assert "10 emoji scenes, 50 captions" in result.stdout
    assert (out / "dataset_emoji.json").is_file()


def test_json_is_all_there_is_on_stdout(tmp_path):
    out = tmp_path / "scenes"
    result = CliRunner().invoke(app, ["--out", str(out), "--items", "2", "--size", "64", "--json"])
    assert json.loads(result.stdout) == {
        "dataset": "emoji-scenes",
        "path": str(out),
        "items": 2,
        "seed": 0,
        "size": 64,
    }


def test_no_pictures_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["--out", str(tmp_path / "x"), "--items", "0"])
    assert result.exit_code == 2
    assert not (tmp_path / "x").exists()
