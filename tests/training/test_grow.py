"""Growing sets around a single-vector model: the same ranking at the first step, the model as it was afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import polysem
from encoders.tiny_duals import save_dual
from polysem import models
from polysem.cli import app
from polysem.data import open_collection
from polysem.data.collection import load_features
from polysem.errors import ConfigError
from polysem.models import Model
from polysem.training import train
from polysem.training.build import build_model
from polysem.training.optimiser import build_optimiser
from polysem.training.run_folder import Checkpoints, read_metrics
from polysem.training.splits import split
from polysem.training.start import grow_recipe, take_over
from sample_data import karpathy
from training.small import make_data, tiny

QUICK = ("training.epochs=2", "training.batch=6")
WORDS = ("dog", "cat", "ball", "grass", "red", "blue")


@pytest.fixture(scope="module")
def regions(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    splits = ["train"] * 12 + ["val"] * 6
    captions = [[f"a {WORDS[i % 6]} {WORDS[i // 6]}", f"the {WORDS[i % 6]} sits"] for i in range(18)]
    entries = [{"filename": f"{i}.png", "split": s, "captions": captions[i]} for i, s in enumerate(splits)]
    return karpathy(tmp_path_factory.mktemp("photos"), entries).parent


@pytest.fixture(scope="module")
def own(regions, tmp_path_factory) -> Path:
    """A model with a projection under batch norm and dropout on both sides, which a frozen one must not touch."""
    out = tmp_path_factory.mktemp("own") / "run"
    train(tiny("vse-infty", "training.epochs=2"), regions, out, tracker=None)
    return out


@pytest.fixture(scope="module", params=["own", "clip", "siglip"])
def start(request, own, regions, photos, tmp_path_factory) -> tuple[Path, Path]:
    """A model of one vector, and data that fits it."""
    if request.param == "own":
        return own, regions
    return save_dual(request.param, tmp_path_factory.mktemp("dual") / request.param), photos


def grown(folder: Path, data: Path, k: int = 4, **options) -> tuple[Model, Model]:
    """The model before the first step, and what it grew from."""
    source, recipe = polysem.load(folder), grow_recipe(polysem.load(folder), str(folder), k, **options)
    model = build_model(recipe, split(open_collection(data), recipe.data).train, source)
    report = take_over(model, source)
    assert "image.sets.base" in report.taken
    assert set(report.new) == {"image.sets", "similarity"}
    return model.eval(), source


def scores(model: Model, data: Path) -> torch.Tensor:
    items = list(open_collection(data).split("val"))
    if model.image.encoder.takes == "features":
        images = model.encode_images([np.array(load_features(item.media)) for item in items])
    else:
        images = model.encode_images([item.media.path for item in items])
    texts = model.encode_texts([caption for item in items for caption in item.captions])
    return model.similarity(images, texts)


def test_at_the_first_step_every_element_is_the_models_own_vector(start):
    folder, data = start
    model, source = grown(folder, data)
    assert model.set_sizes == (4, 1)
    one, other = scores(source, data), scores(model, data)
    torch.testing.assert_close(other, one, rtol=0, atol=1e-6)
    # The very ranking, but for pairs that are equal to rounding.
    for before, after in zip(one, other, strict=True):
        assert (before[after.argsort(descending=True)].diff() <= 1e-6).all()


@pytest.mark.slow
def test_the_elements_are_trained_beside_a_frozen_model(start, tmp_path):
    folder, data = start
    recipe = grow_recipe(polysem.load(folder), str(folder), 3, overrides=QUICK)
    result = train(recipe, data, tmp_path / "run", tracker=None)
    first = next(line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if line["kind"] == "validation")
    assert first["step"] == 0
    assert result.best["rsum"] >= first["rsum"]
    last, source = Checkpoints(tmp_path / "run").load("last")[0], polysem.load(folder).state_dict()
    assert float(last["model/image.sets.gamma"].abs()) > 0
    kept = {name.removeprefix("model/").replace("image.sets.base.", "image.sets."): t for name, t in last.items()}
    same = [torch.equal(kept[name], tensor) for name, tensor in source.items() if name in kept]
    assert all(same)
    assert len(same) == len(source) or "own" not in str(folder)


@pytest.mark.slow
def test_the_base_may_learn_too(own, regions, tmp_path):
    recipe = grow_recipe(polysem.load(own), str(own), 3, train_base=True, overrides=QUICK)
    model, _ = grown(own, regions, train_base=True)
    assert all(parameter.requires_grad for parameter in model.image.sets.base.parameters())
    rates = {group["name"]: group["lr"] for group in build_optimiser(model, recipe.optimiser).param_groups}
    assert rates["image.sets.base"] == pytest.approx(0.1 * rates["image.sets"])
    assert rates["text.sets"] == pytest.approx(0.1 * rates["image.sets"])
    train(recipe, regions, tmp_path / "run", tracker=None)
    last, source = Checkpoints(tmp_path / "run").load("last")[0], polysem.load(own).state_dict()
    assert not torch.equal(last["model/text.encoder.embedding.weight"], source["text.encoder.embedding.weight"])


def test_a_model_of_several_vectors_is_refused(photos, tmp_path):
    clip = save_dual("clip", tmp_path / "clip")
    sets = {"name": "attention_pooling", "k": 1, "hidden": 8, "attention": 4}
    image = {"encoder": {"name": "patch", "model": str(clip), "trainable": "none"}, "sets": sets}
    text = {"encoder": {"name": "transformer", "model": str(clip), "trainable": "none"}, "sets": sets}
    members = [models.build(8, image, text, {"name": "cosine"}) for _ in range(3)]
    with pytest.raises(ConfigError, match="3 vectors of an image and 3 of a text"):
        grow_recipe(models.join(members), "joined")


def test_shared_set_predictors_part_where_one_grows(photos, tmp_path):
    clip = save_dual("clip", tmp_path / "clip")
    sets = {"name": "attention_pooling", "k": 1, "hidden": 8, "attention": 4}
    image = {"encoder": {"name": "patch", "model": str(clip), "trainable": "none"}, "sets": sets}
    text = {"encoder": {"name": "transformer", "model": str(clip), "trainable": "none"}, "sets": "shared"}
    models.build(8, image, text, {"name": "cosine"}).save(tmp_path / "shared")
    model, source = grown(tmp_path / "shared", photos)
    torch.testing.assert_close(scores(model, photos), scores(source, photos), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_grown_on_the_command_line_it_is_indexed_searched_and_explained(photos, tmp_path):
    clip = save_dual("clip", tmp_path / "clip")

    def run(*arguments: object) -> str:
        found = CliRunner().invoke(app, [*map(str, arguments)])
        assert found.exit_code == 0, (found.output, found.exception)
        return found.output

    settings = [each for override in QUICK for each in ("--set", override)]
    out, index = tmp_path / "grown", tmp_path / "index"
    said = run("grow", clip, "--k", 3, "--data", photos, "--out", out, "--tracker", "none", *settings)
    assert "image.sets.base" in " ".join(said.split())
    assert polysem.load(out).set_sizes == (3, 1)
    run("index", photos / "images", "--model", out, "--out", index)
    assert ".png" in run("search", index, "a red dog")
    run("explain", out, photos / "images" / "1.png", "a red dog", "--out", tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 0


def test_k_of_one_is_no_set(own, regions, tmp_path):
    found = CliRunner().invoke(
        app, ["grow", str(own), "--k", "1", "--data", str(regions), "--out", str(tmp_path / "run")]
    )
    assert found.exit_code == 2
    assert not (tmp_path / "run").exists()
