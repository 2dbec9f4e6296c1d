"""Raw videos from the file to a trained model, through the code that pictures take."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import polysem
import sample_videos
from encoders import tiny_models
from polysem import recipes
from polysem.cli import app
from polysem.data import open_collection
from polysem.errors import InputError, UnknownNameError
from polysem.evaluation.embeddings import embed_collection
from polysem.training import train
from training.killed_runs import killed_after
from training.test_train import same_run

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220), "white": (240, 240, 240)}


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    """Each of two colours, one after the other; one file is no video."""
    folder = tmp_path_factory.mktemp("data") / "clips"
    captions, splits = {}, {"train": [], "val": [], "test": []}
    pairs = [(a, b) for a in COLOURS for b in COLOURS if a != b]
    for number, (a, b) in enumerate(pairs):
        name = f"{a}-{b}"
        pictures = [Image.new("RGB", (32, 32), COLOURS[a])] * 4 + [Image.new("RGB", (32, 32), COLOURS[b])] * 4
        sample_videos.write(folder / "videos" / f"{name}.mp4", pictures)
        captions[name] = [f"first {a} then {b}", f"{a} before {b}"]
        splits["val" if number % 4 == 3 else "test" if number % 6 == 4 else "train"].append(name)
    (folder / "videos" / "bad.mp4").write_bytes(b"no video")
    captions["bad"], splits["train"] = ["nothing to see"], [*splits["train"], "bad"]
    (folder / "captions.json").write_text(json.dumps(captions))
    (folder / "splits.json").write_text(json.dumps(splits))
    return folder


@pytest.fixture(scope="module")
def resnet(tmp_path_factory) -> Path:
    return tiny_models.save("resnet", tmp_path_factory.mktemp("resnet"))


def tiny(resnet: Path, *overrides: str, name: str = "small-vse-infty-video"):
    return recipes.load(
        name,
        [
            f"image.encoder.encoder.model={resnet}",
            "image.encoder.encoder.image_size=32",
            "image.encoder.frames=4",
            "text.encoder.name=bigru",
            "text.encoder.word_dim=8",
            "text.project=null",
            "dim=16",
            "data.min_count=1",
            "training.batch=4",
            "training.epochs=2",
            *overrides,
        ],
    )


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small-vse-infty-video", "small-vse++-video"])
def test_raw_videos_train_through_a_store_and_the_model_reads_files(clips, resnet, tmp_path, name):
    result = train(tiny(resnet, name=name), clips, tmp_path / "run", tracker=None)
    assert result.status == "finished"
    stores = list((tmp_path / "cache" / "features").glob("clips-*"))
    assert len(stores) == 1  # the frames were encoded once, for both epochs and the validation
    model = polysem.load(tmp_path / "run")
    paths = [item.media.path for item in open_collection(clips).split("test")]
    together = model.encode_images(paths)
    alone = torch.cat([model.encode_images([path]) for path in paths])
    assert together.shape == (len(paths), 1, 16)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    picture = Image.new("RGB", (9, 9))  # to this model a video of one frame
    mixed = model.encode_images([paths[0], picture, paths[1]])
    torch.testing.assert_close(mixed[[0, 2]], together[:2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixed[1:2], model.encode_images([picture]), atol=1e-5, rtol=1e-5)
    assert 'model.encode_images(["clip.mp4"])' in (tmp_path / "run" / "README.md").read_text()


def test_a_video_from_a_store_embeds_as_from_its_file(clips, resnet, tmp_path):
    train(tiny(resnet), clips, tmp_path / "run", tracker=None)
    runner = CliRunner()
    knobs = json.dumps({"name": "grid", "model": str(resnet), "image_size": 32})
    command = ["features", str(clips), "--encoder", "video_frames", "--set", f"encoder={knobs}", "--set", "frames=4"]
    done = runner.invoke(app, [*command, "--dtype", "float32", "--out", str(tmp_path / "store"), "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["what"], summary["items"], summary["tokens"]) == ("videos", 12, 48)
    assert [skip["item"] for skip in summary["skipped"]] == ["bad"]
    model, test = polysem.load(tmp_path / "run"), open_collection(clips).split("test")
    stored = embed_collection(model, test, features=tmp_path / "store")
    torch.testing.assert_close(stored.images, embed_collection(model, test).images, atol=1e-5, rtol=1e-5)
    evaluated = runner.invoke(
        app, ["eval", str(tmp_path / "run"), "--data", str(clips), "--split", "test", "--protocol", "video", "--json"]
    )
    assert evaluated.exit_code == 0, evaluated.output
    assert '"r1"' in evaluated.stdout


def test_frames_can_be_trained_through_and_augmented(clips, resnet, tmp_path):
    recipe = tiny(resnet, "image.encoder.trainable=all", "image.augment.pixels=true", "training.epochs=1")
    collection = open_collection(clips)
    readable = collection.where([i for i, item in enumerate(collection) if item.id != "bad"])
    train(recipe, readable, tmp_path / "run", tracker=None)
    fresh = polysem.encoders.build("grid", model=str(resnet), image_size=32)
    trained = polysem.load(tmp_path / "run").image.encoder.encoder
    changed = [not torch.equal(a, b) for a, b in zip(trained.parameters(), fresh.parameters(), strict=True)]
    assert any(changed)


def test_a_recipe_and_a_collection_that_do_not_fit_say_which_would(clips, resnet, tmp_path):
    with pytest.raises(InputError, match=r"takes pictures, and clips is a collection of videos.*small-vse-infty-video"):
        train(recipes.load("small-vse-infty"), clips, tmp_path / "run", tracker=None)
    (tmp_path / "features").mkdir()
    for name in ("a", "b", "c"):
        np.save(tmp_path / "features" / f"{name}.npy", np.ones((2, 3), np.float32))
    (tmp_path / "captions.json").write_text('{"a": ["x"], "b": ["y"], "c": ["z"]}')
    (tmp_path / "splits.json").write_text('{"train": ["a", "b"], "val": ["c"]}')
    with pytest.raises(InputError, match=r"takes videos, and .* is a collection of features"):
        train(tiny(resnet), tmp_path, tmp_path / "run", tracker=None)


def test_a_mistake_in_the_frames_encoder_is_named(resnet):
    with pytest.raises(UnknownNameError, match=r"image\.encoder\.encoder.*image_sise"):
        tiny(resnet, "image.encoder.encoder.image_sise=3")


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2])
def test_a_run_on_videos_cut_anywhere_ends_in_the_same_bits(after, clips, resnet, tmp_path):
    recipe = tiny(resnet, "training.checkpoint_every=1", "training.epochs=3")
    train(recipe, clips, tmp_path / "straight", tracker=None)
    with killed_after(after):
        train(recipe, clips, tmp_path / "cut", tracker=None)
    assert train(recipe, clips, tmp_path / "cut", tracker=None).status == "finished"
    assert same_run(tmp_path / "straight", tmp_path / "cut")
