"""The model that is used where none is named: what is found on a machine, and in which order."""

import json
import os

import pytest

from polysem.environment.default_model import VARIABLE, choose_model, find_dual_encoders
from polysem.environment.paths import PHOTO_SMALL

WHOLE = ("model.safetensors", "tokenizer.json", "preprocessor_config.json")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Puts a model into the hub's cache as huggingface_hub lays it out."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def put(name: str, family: str, files: tuple[str, ...] = WHOLE, fetched: float = 1e9):
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        snapshot = folder / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("abc")
        (snapshot / "config.json").write_text(json.dumps({"model_type": family}))
        for file in files:
            (snapshot / file).write_bytes(b"1")
        os.utime(snapshot, (fetched, fetched))
        return snapshot

    return put


def test_without_dual_encoders_the_shipped_model_is_taken(hub):
    hub("google-bert/bert-base-uncased", "bert")
    choice = choose_model()
    assert choice.name == PHOTO_SMALL
    assert "comes with polysem" in choice.why


def test_a_fetched_dual_encoder_comes_first(hub):
    hub("openai/clip-vit-base-patch32", "clip")
    choice = choose_model()
    assert choice.name == "openai/clip-vit-base-patch32"
    assert "fetched" in choice.why


def test_one_of_sentence_transformers_is_found_within_its_folder(hub):
    snapshot = hub("sentence-transformers/clip-ViT-B-32", "clip")
    (snapshot / "0_CLIPModel").mkdir()
    for file in ("config.json", *WHOLE):
        (snapshot / file).rename(snapshot / "0_CLIPModel" / file)
    assert find_dual_encoders() == []
    (snapshot / "modules.json").write_text("[]")
    assert find_dual_encoders() == ["sentence-transformers/clip-ViT-B-32"]


def test_better_families_then_newer_ones_come_first(hub):
    hub("openai/clip-vit-base-patch32", "clip", fetched=2e9)
    hub("google/siglip-base-patch16-224", "siglip", fetched=1e9)
    hub("google/siglip-so400m-patch14-384", "siglip", fetched=2e9)
    hub("google/siglip2-base-patch16-224", "siglip", fetched=1e9)
    assert find_dual_encoders() == [
        "google/siglip2-base-patch16-224",
        "google/siglip-so400m-patch14-384",
        "google/siglip-base-patch16-224",
        "openai/clip-vit-base-patch32",
    ]


@pytest.mark.parametrize("missing", WHOLE)
def test_a_model_that_is_not_whole_is_passed_over(hub, missing):
    hub("openai/clip-vit-base-patch32", "clip", tuple(file for file in WHOLE if file != missing))
    assert find_dual_encoders() == []


def test_weights_whose_download_was_cut_are_passed_over(hub):
    snapshot = hub("openai/clip-vit-base-patch32", "clip", WHOLE[1:])
    (snapshot / "model.safetensors").symlink_to(snapshot / "absent")
    assert find_dual_encoders() == []


def test_damaged_entries_of_the_cache_are_passed_over(hub, tmp_path):
    (tmp_path / "models--empty").mkdir()
    (hub("one/damaged", "clip") / "config.json").write_text("{")
    (hub("one/list", "clip") / "config.json").write_text("[]")
    assert choose_model().name == PHOTO_SMALL


def test_the_user_may_name_another(hub, monkeypatch):
    hub("openai/clip-vit-base-patch32", "clip")
    monkeypatch.setenv(VARIABLE, "runs/mine")
    choice = choose_model()
    assert (choice.name, choice.why) == ("runs/mine", f"{VARIABLE} names it")
