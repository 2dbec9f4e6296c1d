"""`polysem explain` as a user meets it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from inspection.small_models import CAPTION_FILE, DIM, make_model, make_regions
from polysem import encoders
from polysem.cli import app
from polysem.errors import PolysemError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models, a picture, features and captions."""
    here = tmp_path_factory.mktemp("explain")
    grid = encoders.build("grid", pretrained=False, image_size=64, dim=DIM, trainable="none")
    make_model("slots", "slots", encoder=grid).save(here / "pictures")
    make_model("single-gpo", "single-gpo", "cosine").save(here / "features")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 90, 3)).astype(np.uint8)).save(here / "photo.png")
    np.save(here / "one.npy", make_regions().numpy())
    np.save(here / "boxes.npy", np.array([[i, i, i + 20, i + 10] for i in range(7)]))
    (here / "captions.txt").write_text(CAPTION_FILE)
    return here


def call(*arguments: object):
    return CliRunner().invoke(app, ["explain", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.slow
def test_it_draws_and_says_the_score(folder, tmp_path):
    out = tmp_path / "why.png"
    found = call(
        folder / "pictures", folder / "photo.png", "a red dog", "--out", out, "--captions", folder / "captions.txt"
    )
    assert found.exit_code == 0, found.output
    assert "smooth_chamfer score" in found.stdout
    with Image.open(out) as image:
        assert min(image.size) > 500


def test_json_adds_up(folder):
    found = call(folder / "features", folder / "one.npy", "a red dog", "--json", "--captions", folder / "captions.txt")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["nearest"][0][0]["caption"] in CAPTION_FILE
    assert sum(map(sum, told["contributions"])) == pytest.approx(told["score"], abs=1e-5)


def test_features_are_shown_on_their_picture(folder, tmp_path):
    where = ("--picture", folder / "photo.png", "--boxes", folder / "boxes.npy", "--theme", "dark")
    found = call(folder / "features", folder / "one.npy", "a red dog", "--out", tmp_path / "why.svg", *where)
    assert found.exit_code == 0, found.output
    assert (tmp_path / "why.svg").read_text().count("<path") > 7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["features", "photo.png", "a dog", "--out", "why.png"], "precomputed features"),
        (["pictures", "photo.png", " ", "--out", "why.png"], "caption is empty"),
        (["pictures", "captions.txt", "a dog", "--out", "why.png"], "not a picture"),
        (["pictures", "photo.png", "a dog", "--out", "why.gif"], "ending"),
        (["pictures", "photo.png", "a dog", "--out", "photo.png/why.png"], "Cannot write the explanation"),
        (["pictures", "photo.png", "a dog", "--out", "why.png", "--theme", "grey"], "light"),
        (["pictures", "photo.png", "a dog"], "--out why.png"),
        (["photo.png", "photo.png", "a dog", "--json"], "is a file"),
    ],
)
def test_mistakes(folder, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(folder)
    with pytest.raises(PolysemError, match=says) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    assert not (folder / "why.png").exists()
