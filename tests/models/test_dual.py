"""Dual encoders are models: by folder, without training, wherever a model goes."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

import polysem
from encoders.test_dual import TEXTS, pictures
from encoders.tiny_duals import DUALS, save_dual


@pytest.fixture(scope="module", params=list(DUALS))
def folder(request, tmp_path_factory):
    return save_dual(request.param, tmp_path_factory.mktemp("dual") / request.param)


@torch.no_grad()
def test_its_logits_are_those_of_transformers(folder):
    model, theirs = polysem.load(folder), transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    seen = processor(images=pictures(), return_tensors="pt")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="right")
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
    assert polysem.load(tmp_path).set_sizes == (1, 1)
