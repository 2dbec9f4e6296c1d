"""The commands as who has labels meets them: data of every kind in, and figures that speak of labels out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import polysem
from encoders import tiny_models
from polysem.cli import app
from polysem.data import open_collection
from polysem.errors import ConfigError, InputError
from polysem.training import train
from training.labelled import make_labelled, tiny

pytestmark = pytest.mark.slow

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220)}


def call(*arguments: object):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "sharing"
    more = ("training.epochs=8", "training.validate_every=8", "training.captions=all", "optimiser.lr=5e-3")
    train(tiny("semantic-sharing", *more), data, out, tracker=None)
    return out


def test_the_table_of_labels_has_ndcg_and_map_both_ways(run, data):
    found = call("eval", run, "--data", data, "--protocol", "labels", "--split", "val", "--option", "k=5")
    assert found.exit_code == 0, found.output
    rows = {line.split("│")[1].strip(): line for line in found.stdout.splitlines() if line.startswith("│")}
    assert {"NDCG@5", "precision@5", "mAP"} <= rows.keys()
    told = call("eval", run, "--data", data, "--protocol", "labels", "--split", "val", "--option", "k=5", "--json")
    metrics = json.loads(told.stdout)["metrics"]
    for way in ("i2t", "t2i"):
        assert f"{metrics[way]['map']:.1f}" in rows["mAP"]
        assert f"{metrics[way]['ndcg5']:.1f}" in rows["NDCG@5"]
    assert "micro_f1: image" in found.stdout
    pairs = call("eval", run, "--data", data, "--split", "val").stdout
    assert "mAP@R" in pairs
    assert "│ mAP " not in pairs  # of pairs there is one in the table


def test_a_diagnosis_tells_how_labels_are_predicted(run, data):
    found = call("diagnose", run, "--data", data, "--split", "val", "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    measured = json.loads(call("eval", run, "--data", data, "--protocol", "labels", "--split", "val", "--json").stdout)[
        "metrics"
    ]["micro_f1"]
    assert told["labels"]["micro_f1"] == pytest.approx(measured)
    (verdict,) = (each for each in told["verdicts"] if each["about"] == "labels")
    assert f"{measured['image']:.1f} for images and {measured['text']:.1f} for texts" in verdict["says"]


@pytest.mark.slow
def test_an_explanation_names_the_labels_behind_it(run, data, tmp_path):
    np.save(tmp_path / "one.npy", np.load(data / "dev_ims.npy")[0])
    found = call("explain", run, tmp_path / "one.npy", "a red dog", "--json", "--out", tmp_path / "why.png")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    model = polysem.load(run)
    said = model.classify_images([np.load(tmp_path / "one.npy")])[0]
    best = told["labels"]["image"][0]
    assert best["label"] == model.labels[int(said.argmax())]
    assert best["probability"] == pytest.approx(float(said.max()), abs=1e-6)
    assert told["labels"]["text"][0]["label"] == model.labels[int(model.classify_texts(["a red dog"])[0].argmax())]
    assert told["winning"]["names"] == [model.labels[place] for place in told["winning"]["dimensions"]]
    shown = call("explain", run, tmp_path / "one.npy", "a red dog", "--out", tmp_path / "why.png").stdout
    assert f"labels of the image: {best['label']} {best['probability']:.2f}" in shown


@pytest.mark.slow
@pytest.mark.parametrize("read", ["tokens", "cls"])
def test_the_encoders_state_is_measured_indexed_and_found(read, data, tmp_path):
    """The other embedding that the family offers."""
    recipe = tiny("semantic-sharing", "image.sets.embed=state", "dim=16", f"image.sets.read={read}")
    train(recipe, data, tmp_path / "run", tracker=None)
    found = call("eval", tmp_path / "run", "--data", data, "--protocol", "labels", "--split", "val", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["metrics"]["micro_f1"].keys() == {"image", "text"}
    made = call("index", data, "--model", tmp_path / "run", "--out", tmp_path / "index")
    assert made.exit_code == 0, made.output
    assert "× 16 float32" in call("stats", tmp_path / "index").stdout
    answers = json.loads(call("search", tmp_path / "index", "a red dog", "--k", 3, "--json").stdout)["items"]
    assert len(answers) == 3
    np.save(tmp_path / "one.npy", np.load(data / "dev_ims.npy")[0])
    why = json.loads(call("explain", tmp_path / "run", tmp_path / "one.npy", "a red dog", "--json").stdout)
    assert why["image_weights"]["how"] == ("pooling" if read == "tokens" else "omission")
    assert why["winning"] is None or why["winning"]["names"] is None  # its dimensions are no classes
    assert len(why["labels"]["image"]) == 3


def test_models_that_learned_labels_are_compared_by_what_labels_are_about(run, data):
    asked = ("compare", run, run, "--data", data, "--protocol", "labels", "--split", "val", "--option", "k=5")
    (table,) = json.loads(call(*asked, "--json").stdout)["tables"]
    assert table["columns"] == ["i2t.ndcg5", "i2t.map", "t2i.ndcg5", "t2i.map", "micro_f1.image", "micro_f1.text"]
    shown = call(*asked, "--format", "markdown").stdout
    assert "| I→T NDCG@5 | I→T mAP | T→I NDCG@5 | T→I mAP | micro-F1 image | micro-F1 text |" in shown


def test_vectors_that_are_no_units_are_indexed_as_the_cosine_sees_them(data, tmp_path):
    """The released model leaves its class probabilities as long as they are."""
    train(tiny("semantic-sharing-official"), data, tmp_path / "run", tracker=None)
    model = polysem.load(tmp_path / "run")
    # As after long training: the tokens of an item say different things, and their mean is short.
    with torch.no_grad():
        model.image.sets.predict_classes.weight.mul_(50)
    model.save(tmp_path / "sure")
    images = model.encode_images(list(np.load(data / "dev_ims.npy")))
    assert (images.norm(dim=-1) - 1).abs().max() > 0.02
    made = call("index", data, "--model", tmp_path / "sure", "--out", tmp_path / "index", "--split", "val")
    assert made.exit_code == 0, made.output
    found = json.loads(call("search", tmp_path / "index", "a red dog", "--k", 8, "--json").stdout)["items"]
    wanted = model.similarity(images, model.encode_texts(["a red dog"]))[:, 0].sort(descending=True).values
    assert [each["score"] for each in found] == pytest.approx(wanted[: len(found)].tolist(), abs=1e-6)


def test_a_knob_of_what_is_shared_is_refused_where_it_would_be_ignored():
    for knob in ("banana=3", "dropout=0.5"):
        with pytest.raises(ConfigError, match=f"Set image.sets.{knob.partition('=')[0]} instead"):
            tiny("semantic-sharing", f"text.sets.{knob}")


def test_the_encoders_state_says_which_width_it_needs():
    with pytest.raises(ConfigError, match=r"embed=state.* --set dim=16"):
        tiny("semantic-sharing", "image.sets.embed=state")


# --------------------------------------------------------------------------------------------------- folders of labels


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """Pictures in a folder for each label."""
    folder, rng = tmp_path_factory.mktemp("data") / "colours", np.random.default_rng(0)
    for number in range(30):
        name = tuple(COLOURS)[number % 3]
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = np.full((32, 32, 3), COLOURS[name]) + rng.integers(-20, 20, (32, 32, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number}.png")
        (folder / name / f"{number}.txt").write_text(f"a {name} square {number}\n")
    return folder


@pytest.fixture
def small(tmp_path, monkeypatch) -> list[str]:
    """Settings with which small-semantic-sharing trains on pictures in moments."""
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "cache"))
    resnet = tiny_models.save("resnet", tmp_path / "resnet")
    settings = [
        *(f"image.encoder.model={resnet}", "image.encoder.image_size=32", "image.project.dim=16"),
        *("image.sets.input_dim=16", "image.sets.layers=1", "image.sets.heads=2", "image.sets.ff=16"),
        *("text.encoder.name=bigru", "text.encoder.word_dim=8", "text.encoder.dim=16", "text.project=null"),
        *("data.min_count=1", "training.batch=6", "training.epochs=1"),
    ]
    return [argument for setting in settings for argument in ("--set", setting)]


def test_training_says_what_it_could_not_read(folders, small, tmp_path):
    shutil.copytree(folders, tmp_path / "data")
    (tmp_path / "data" / "red" / "0.png").write_bytes(b"no picture")
    begin = ("train", "small-semantic-sharing", "--data", tmp_path / "data", "--folder-labels", "--tracker", "none")
    found = call(*begin, *small, "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    assert "1 item(s) that cannot be read" in found.stdout
    (reason,) = json.loads((tmp_path / "run" / "run.json").read_text())["left_out"]
    assert reason.startswith("red/0.png: ")
    for path in (tmp_path / "data").rglob("*.png"):
        path.write_bytes(b"no picture")
    worse = call(*begin, *small, "--out", tmp_path / "other")
    assert isinstance(worse.exception, InputError)
    assert "30 could not be read; the first is" in str(worse.exception)


def test_names_of_folders_are_learned_and_measured(folders, small, tmp_path):
    begin = ("train", "small-semantic-sharing", "--data", folders, "--out", tmp_path / "run", "--tracker", "none")
    bare = call(*begin, *small)
    assert isinstance(bare.exception, InputError)
    assert "--folder-labels" in str(bare.exception)
    found = call(*begin, *small, "--folder-labels")
    assert found.exit_code == 0, found.output
    measure = (tmp_path / "run", "--data", folders, "--split", "val")
    told = call("eval", *measure, "--protocol", "labels", "--folder-labels", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["metrics"]["micro_f1"].keys() == {"image", "text"}
    unlabelled = call("eval", *measure, "--protocol", "labels")
    assert isinstance(unlabelled.exception, InputError)
    assert "--folder-labels" in str(unlabelled.exception)
    diagnosed = call("diagnose", *measure, "--folder-labels", "--json")
    held = open_collection(folders, folder_labels=True).hold_out()[0]
    assert json.loads(diagnosed.stdout)["labels"]["present"] == len(held.label_names)
