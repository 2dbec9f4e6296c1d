"""`encode` and `similarity`, as code written for sentence-transformers calls them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from encoders import tiny_models
from polysem.data import Vocabulary
from polysem.errors import InputError
from polysem.models import build
from polysem.models.embedding import ImageItems

DIM = 8
TEXTS = ["a dog", "the cat and the dog", "a cat"]


def made(image, sets=None):
    text = {"encoder": {"name": "bigru", "vocab_size": 9, "word_dim": 4}, "sets": sets or {"name": "summary"}}
    model = build(DIM, image, text, {"name": "chamfer"}).eval()
    model.text.encoder.vocabulary = Vocabulary.build(TEXTS, min_count=1)
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    grid = tiny_models.save("resnet", tmp_path_factory.mktemp("resnet"))
    sets = {"name": "pie_net", "k": 2}
    encoder = {"name": "grid", "model": str(grid), "image_size": 32}
    return made({"encoder": encoder, "pool": {"name": "max"}, "sets": sets}, sets)


@pytest.fixture
def pictures(tmp_path):
    paths = [tmp_path / f"{colour}.png" for colour in ("red", "blue")]
    for path in paths:
        Image.new("RGB", (20, 30), path.stem).save(path)
    return paths


def test_texts_and_pictures_keep_their_order(model, pictures):
    opened = Image.new("RGB", (9, 9), "green")
    found = model.encode([TEXTS[0], pictures[0], TEXTS[1], opened, pictures[1], TEXTS[2]], batch_size=2)
    assert isinstance(found, np.ndarray)
    assert found.shape == (6, 2, DIM)
    texts, images = model.encode_texts(TEXTS), model.encode_images([pictures[0], opened, pictures[1]])
    np.testing.assert_allclose(found[[0, 2, 5]], texts, atol=1e-6)
    np.testing.assert_allclose(found[[1, 3, 4]], images, atol=1e-6)


def test_a_single_item_gives_a_single_set(model, pictures):
    for item in (TEXTS[0], pictures[0], Image.open(pictures[0])):
        np.testing.assert_allclose(model.encode(item), model.encode([item])[0], atol=0)
        assert model.encode(item).shape == (2, DIM)


def test_tensors_come_where_they_are_asked_for(model):
    assert isinstance(model.encode(TEXTS, convert_to_tensor=True), torch.Tensor)
    assert isinstance(model.encode(TEXTS, convert_to_numpy=False), torch.Tensor)


def test_similarity_takes_arrays_and_tensors(model, pictures):
    texts, images = model.encode(TEXTS), model.encode(pictures)
    scores = model.similarity(images, texts)
    assert scores.shape == (2, 3)
    torch.testing.assert_close(scores, model.similarity(torch.from_numpy(images), texts))
    torch.testing.assert_close(scores, model.similarity(texts, images).t(), atol=1e-6, rtol=0)
    with pytest.raises(InputError, match=r"The set of one item: x\[None\]"):
        model.similarity(images[0], texts)


def test_pictures_are_opened_a_batch_at_a_time(model, pictures, monkeypatch):
    sizes = []
    stack = ImageItems.collate
    monkeypatch.setattr(ImageItems, "collate", lambda self, loaded: sizes.append(len(loaded)) or stack(self, loaded))
    model.encode([*pictures, *pictures, pictures[0]], batch_size=2)
    assert sizes == [2, 2, 1]


def test_a_bar_is_shown_on_stderr_only_when_asked_for(model, capfd):
    model.encode(TEXTS)
    assert capfd.readouterr() == ("", "")
    model.encode(TEXTS, show_progress_bar=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "Encoding" in shown.err


def test_a_model_of_features_takes_arrays():
    model = made({"encoder": {"name": "region", "input_dim": 5}, "sets": {"name": "single", "pooling": "mean"}})
    regions = np.random.default_rng(0).normal(size=(2, 6, 5)).astype(np.float32)
    found = model.encode(["a dog", regions[0], regions[1]])
    np.testing.assert_allclose(found[1:], model.encode_images(regions), atol=1e-6)
    np.testing.assert_allclose(model.encode(regions[0]), found[1], atol=1e-6)
    np.testing.assert_allclose(model.encode(regions), found[1:], atol=1e-6)


def test_sets_of_two_sizes_do_not_mix():
    sets = {"name": "pie_net", "k": 3}
    image = {"encoder": {"name": "region", "input_dim": 5}, "pool": {"name": "max"}, "sets": sets}
    model = made(image)
    assert model.encode("a dog").shape == (1, DIM)
    with pytest.raises(InputError, match="an image 3 vectors and a text 1"):
        model.encode(["a dog", np.zeros((4, 5), np.float32)])


@pytest.mark.parametrize("given", [[], 3, None])
def test_what_is_no_list_of_items_is_refused(model, given):
    with pytest.raises(InputError, match=r"encode\(\)"):
        model.encode(given)


def test_a_file_name_as_a_str_is_named_as_a_mistake(model, pictures):
    with pytest.raises(InputError, match="Item number 1 is the text"):
        model.encode(["a dog", str(pictures[0])])
    assert model.encode(["a dog.png"]).shape == (1, 2, DIM)
    assert model.encode([Path(pictures[0])]).shape == (1, 2, DIM)
