"""Dual encoders are models: by folder, without training, wherever a model goes."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

import polysem
from encoders.test_dual import TEXTS, pictures
from encoders.tiny_duals import DUALS, save_dual
from polysem import encoders
from polysem.data import open_collection
from polysem.encoders import caption_keys, extract, extract_texts
from polysem.errors import PolysemError
from polysem.models import ImportedCheckpointError, import_checkpoint
from search.photos import make_photos


@pytest.fixture(scope="module", params=list(DUALS))
def folder(request, tmp_path_factory):
    return save_dual(request.param, tmp_path_factory.mktemp("dual") / request.param)


@torch.no_grad()
def test_its_logits_are_those_of_transformers(folder):
    model, theirs = polysem.load(folder), transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    seen = processor(images=pictures(), return_tensors="pt")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    siglip = theirs.config.model_type.startswith("siglip")
    given = tokenizer(TEXTS, padding="max_length" if siglip else True, max_length=40 if siglip else None)
    ids = {key: torch.tensor(value) for key, value in given.items() if key == "input_ids" or not siglip}
    ids.pop("token_type_ids", None)
    expected = theirs(**seen, **ids).logits_per_image
    scores = model.similarity(model.encode_images(pictures()), model.encode_texts(TEXTS))
    scale = float(model.similarity.logit_scale)
    torch.testing.assert_close(model.similarity.logits(scores), expected, rtol=0, atol=1e-5 * max(1.0, scale))
    probabilities = model.similarity.match_probabilities(scores)
    if siglip:
        torch.testing.assert_close(probabilities, expected.sigmoid(), rtol=0, atol=1e-5)
    else:
        assert probabilities is None


def test_saved_equals_loaded(folder, tmp_path):
    model = polysem.load(folder)
    again = polysem.load(model.save(tmp_path / "saved"))
    assert again.fingerprint() == model.fingerprint()
    assert torch.equal(again.encode_images(pictures()), model.encode_images(pictures()))
    assert torch.equal(again.encode_texts(TEXTS), model.encode_texts(TEXTS))


def test_a_folder_of_sentence_transformers_is_read(tmp_path):
    save_dual("clip", tmp_path / "0_CLIPModel")
    modules = [{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "config_sentence_transformers.json").write_text("{}")
    model, inner = polysem.load(tmp_path), polysem.load(tmp_path / "0_CLIPModel")
    assert model.set_sizes == (1, 1)
    assert model.fingerprint() == inner.fingerprint()
    assert model.image.encoder.config["model"] == str(tmp_path)  # on the hub a name, not where the cache has it
    half = encoders.build("dual_text", model=str(tmp_path)).eval()  # as the recipe clip-sets builds it
    assert torch.equal(half(half.tokenize(TEXTS)).summary, inner.text.encoder(half.tokenize(TEXTS)).summary)


def test_it_is_loaded_by_its_name_on_the_hub_without_network(tmp_path, monkeypatch):
    cache = tmp_path / "hub" / "models--openai--clip-tiny"
    save_dual("clip", cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    model = polysem.load("openai/clip-tiny")
    assert model.provenance["pretrained"] == model.image.encoder.config["model"] == "openai/clip-tiny"
    assert polysem.load(model.save(tmp_path / "saved")).fingerprint() == model.fingerprint()
    with pytest.raises(PolysemError, match=r"'openai/another' could not be had from the hub .*HF_HUB_OFFLINE is set"):
        polysem.load("openai/another")


@pytest.mark.parametrize(("family", "why"), [("xclip", "by the video"), ("bert", "into one space")])
def test_a_model_that_is_no_dual_encoder_is_refused_with_the_reason(tmp_path, family, why):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(PolysemError, match=why):
        polysem.load(tmp_path)
    with pytest.raises(ImportedCheckpointError, match=why):
        import_checkpoint(tmp_path, "transformers")


@pytest.mark.parametrize("name", ["./nowhere", "minilm"])
def test_what_is_no_model_is_refused_with_the_models_there_are(name, tmp_path, monkeypatch):
    """Not with the encoders there are: an encoder's weights search nothing."""
    monkeypatch.chdir(tmp_path)
    for open_model in (polysem.load, lambda given: import_checkpoint(given, "transformers")):
        with pytest.raises(
            PolysemError, match=r"(?s)trained model.*photo-small.*dual encoder on the Hugging Face hub"
        ) as error:
            open_model(name)
        assert name in str(error.value)
        assert "efficientnet-lite0" not in str(error.value)


def test_damaged_weights_are_named_with_the_remedy(tmp_path):
    folder = save_dual("clip", tmp_path)
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(PolysemError, match=r"cannot be read .*; copy the files of the model to .* again\."):
        polysem.load(folder)


def test_imported_it_needs_its_source_no_longer(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "source")
    model = import_checkpoint(copied, "transformers")
    saved = model.save(tmp_path / "model")
    vectors = model.encode_images(pictures()), model.encode_texts(TEXTS)
    shutil.rmtree(copied)
    again = polysem.load(saved)
    assert again.provenance["imported"] == model.provenance["imported"]
    assert again.provenance["imported"]["file"] == "source"
    assert torch.equal(again.encode_images(pictures()), vectors[0])
    assert torch.equal(again.encode_texts(TEXTS), vectors[1])
    assert again.fingerprint() == model.fingerprint()
    assert "The Hugging Face model `source`" in (saved / "README.md").read_text()
    with pytest.raises(ImportedCheckpointError, match="--tokenizer"):
        import_checkpoint(folder, "transformers", tokenizer=folder)


def test_features_and_their_summary_are_stored(folder, tmp_path, photos):
    """A store of both halves gives the vectors that the model itself gives."""
    model, collection = polysem.load(folder), open_collection(photos)
    images = extract(collection, model.image.encoder, tmp_path / "images", dtype="float32")
    texts = extract_texts(collection, model.text.encoder, tmp_path / "texts", dtype="float32")
    stored = model.encode_images(images.batch(images.positions([item.id for item in collection])))
    expected = model.encode_images([item.media.path for item in collection])
    torch.testing.assert_close(stored, expected, atol=1e-5, rtol=0)
    stored = model.encode_texts(texts.batch(texts.positions(caption_keys(collection))))
    torch.testing.assert_close(stored, model.encode_texts(collection.captions), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("photos"))
