"""clip-sets and siglip-sets on tiny dual encoders: trained through the command line, from cached features."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import polysem
from encoders.tiny_duals import save_dual
from polysem import recipes
from polysem.cli import app
from polysem.data import open_collection
from polysem.data.store import FeatureStore
from polysem.errors import ConfigError
from polysem.training.build import build_model
from sample_data import karpathy

SLOTS = ["image.sets.name=slots", "text.sets.name=slots", "similarity.name=smooth_chamfer"]
SLOTS += ["image.sets.heads=2", "text.sets.heads=2", "image.sets.head_dim=4", "text.sets.head_dim=4"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    words = ("dog", "cat", "ball", "grass", "red", "blue")
    captions = [[f"a {words[i % 6]} {words[i // 6]}", f"the {words[i % 6]} sits"] for i in range(18)]
    splits = ["train"] * 12 + ["val"] * 6
    entries = [{"filename": f"{i}.png", "split": s, "captions": captions[i]} for i, s in enumerate(splits)]
    return karpathy(tmp_path_factory.mktemp("photos"), entries).parent


@pytest.fixture(scope="module", params=["clip", "siglip"])
def dual(request, tmp_path_factory) -> tuple[str, Path]:
    return f"{request.param}-sets", save_dual(request.param, tmp_path_factory.mktemp("dual") / request.param)


def test_it_begins_at_the_pairs_own_ranking(dual, photos):
    name, folder = dual
    model = build_model(recipes.load(name, [f"dual={folder}"]), open_collection(photos)).eval()
    pair = polysem.load(folder)
    assert model.dim == pair.dim
    assert model.set_sizes == (4, 1)
    pictures, texts = sorted((photos / "images").glob("*.png")), ["a red dog", "the cat sits on the grass", "ball"]
    given = [each.similarity(each.encode_images(pictures), each.encode_texts(texts)) for each in (model, pair)]
    torch.testing.assert_close(*given, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), SLOTS], ids=["readings", "slots"])
@pytest.mark.parametrize("one_knob", [True, False])
def test_it_trains_from_features_that_hold_the_pairs_embedding(dual, photos, overrides, one_knob, tmp_path):
    name, folder = dual
    both = [f"image.encoder.model={folder}", f"text.encoder.model={folder}"]
    settings = ["training.epochs=2", "training.batch=6", *([f"dual={folder}"] if one_knob else both), *overrides]
    stores = tmp_path / "images", tmp_path / "texts"
    given = ["train", name, "--data", photos, "--out", tmp_path / "run", "--tracker", "none"]
    given += ["--features", stores[0], "--text-features", stores[1]]
    found = CliRunner().invoke(app, [*map(str, given), *(each for s in settings for each in ("--set", s))])
    assert found.exit_code == 0, (found.output, found.exception)
    model, pair = polysem.load(tmp_path / "run"), polysem.load(folder)
    assert model.set_sizes == ((4, 4) if overrides else (4, 1))
    images, texts = map(FeatureStore.open, stores)
    assert images.summary_dim == texts.summary_dim == pair.dim
    picture = photos / "images" / "3.png"
    summary = torch.from_numpy(images.summary("3.png").astype("float32"))
    own = pair.encode_images([picture])[0, 0]
    torch.testing.assert_close(summary / summary.norm(), own, rtol=0, atol=2e-3)  # stored as float16
    stored = model.image(images.batch(images.positions(["3.png"]))).vectors
    torch.testing.assert_close(stored, model.encode_images([picture]), rtol=0, atol=5e-3)


def test_one_knob_is_for_dual_encoders():
    with pytest.raises(ConfigError, match=r"dual=clip: image.encoder is 'region'"):
        recipes.load("vse-infty", ["dual=clip"])
    with pytest.raises(ConfigError, match="dim=global"):
        recipes.load("small-vse-infty", ["dim=global"])
