"""The model that is used where none is named: what is found on a machine, and in which order."""

import json
import os

import pytest

import polysem
from polysem.environment import examine
from polysem.environment.default_model import VARIABLE, choose_model, find_dual_encoders
from polysem.environment.paths import PHOTO_BASE, PHOTO_SMALL, SHIPPED, has_fetched_weights, list_shipped
from polysem.models import build
from polysem.weights import find_weights

WHOLE = ("model.safetensors", "tokenizer.json", "preprocessor_config.json")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Puts a model into the hub's cache as huggingface_hub lays it out. No weights are fetched."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "polysem"))
    monkeypatch.delenv(VARIABLE, raising=False)

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


@pytest.fixture
def shipped(hub, tmp_path, monkeypatch):
    """A tiny stand-in of photo-base that rests on DINOv2-small; puts its weights into the cache."""
    image = {"encoder": {"name": "region", "input_dim": 16}, "sets": {"name": "competing_readings", "k": 2}}
    text = {"encoder": {"name": "bigru", "vocab_size": 9}, "sets": {"name": "competing_readings", "k": 1}}
    folder = build(8, image, text, {"name": "soft_maximum"}).save(tmp_path / "shipped" / "photo-base")
    config = json.loads((folder / "config.json").read_text())
    config["model"]["image"]["encoder"] |= {"name": "patch", "model": "dinov2-small"}
    (folder / "config.json").write_text(json.dumps({**config, "borrowed": ["image"], "probe": {"image": [0.5]}}))
    monkeypatch.setitem(SHIPPED, PHOTO_BASE, folder)

    def fetch():
        place = tmp_path / "polysem" / "weights" / "dinov2-small"
        place.mkdir(parents=True)
        (place / "weights.json").write_text("{}")

    return fetch


def test_photo_base_is_taken_where_its_weights_are(shipped, hub):
    without = choose_model()
    assert (without.name, without.better.model, without.better.weights) == (PHOTO_SMALL, PHOTO_BASE, ("dinov2-small",))
    assert without.better.remedy == "polysem weights get dinov2-small"
    assert not has_fetched_weights("dinov2-small")
    shipped()
    assert has_fetched_weights("dinov2-small")
    assert find_weights("dinov2-small") is not None
    choice = choose_model()
    assert (choice.name, choice.better) == (PHOTO_BASE, None)
    assert "dinov2-small" in choice.why
    hub("openai/clip-vit-base-patch32", "clip")
    assert choose_model().name == "openai/clip-vit-base-patch32"


def test_without_photo_base_nothing_is_said_of_it(hub, monkeypatch):
    monkeypatch.delitem(SHIPPED, PHOTO_BASE, raising=False)
    assert (choose_model().name, choose_model().better) == (PHOTO_SMALL, None)


def test_the_doctor_says_what_would_bring_it(shipped):
    remedies = {finding.remedy: finding for finding in examine().findings}
    assert PHOTO_BASE in remedies["polysem weights get dinov2-small"].problem
    assert remedies["polysem weights get dinov2-small"].severity == "optional"
    shipped()
    assert "polysem weights get dinov2-small" not in {finding.remedy for finding in examine().findings}


def test_a_folder_that_is_put_among_the_shipped_is_found_by_its_name(tmp_path, monkeypatch):
    image = {"encoder": {"name": "region", "input_dim": 16}, "sets": {"name": "competing_readings", "k": 2}}
    text = {"encoder": {"name": "bigru", "vocab_size": 9}, "sets": {"name": "competing_readings", "k": 1}}
    model = build(8, image, text, {"name": "soft_maximum"})
    folder = model.save(tmp_path / "photo-base", small=True)
    (tmp_path / "no-model").mkdir()
    assert list_shipped(tmp_path) == {PHOTO_BASE: folder}
    monkeypatch.setitem(SHIPPED, PHOTO_BASE, folder)
    assert polysem.load(PHOTO_BASE).set_sizes == (2, 1)
