"""From a model, a run or a matrix to stamped figures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from polysem import models
from polysem.data.collection import Collection, Item, Media
from polysem.errors import InputError, PolysemError
from polysem.evaluation import evaluate, protocols
from polysem.evaluation.embeddings import embed
from polysem.evaluation.sources import Embedded, Matrix, Mean


def toy(folder, items: int = 12, captions: int = 2, splits: bool = True) -> Collection:
    """Feature files and captions; a third is for testing."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(items):
        np.save(folder / f"{number}.npy", rng.standard_normal((int(rng.integers(2, 5)), 6), dtype=np.float32))
        found.append(
            Item(
                f"item {number}",
                Media(folder, f"{number}.npy"),
                tuple(f"word{number} again{n}" for n in range(captions)),
                split=("test" if number % 3 == 0 else "train") if splits else None,
            )
        )
    return Collection("toy", "features", found)


def toy_model(k: int = 1) -> models.Model:
    torch.manual_seed(0)
    sets = {"name": "single", "pooling": "gpo"} if k == 1 else {"name": "pie_net", "k": k}
    return models.build(
        dim=8,
        image={"encoder": {"name": "region", "input_dim": 6}, "pool": {"name": "max"}, "sets": sets},
        text={"encoder": {"name": "bigru", "vocab_size": 40, "word_dim": 5}, "pool": {"name": "max"}, "sets": sets},
        similarity={"name": "cosine" if k == 1 else "smooth_chamfer"},
    ).eval()


@pytest.fixture
def collection(tmp_path):
    return toy(tmp_path)


@pytest.fixture
def model(monkeypatch):
    model = toy_model()
    _speak(model, monkeypatch)
    return model


def _speak(model, monkeypatch):
    """Words of the toy captions as numbers, without a vocabulary."""
    from polysem.encoders import Tokens

    def tokenize(texts):
        return Tokens.from_lists([[2 + sum(map(ord, word)) % 38 for word in text.split()] for text in texts])

    monkeypatch.setattr(model.text.encoder, "tokenize", tokenize)


def test_a_perfect_matrix(collection):
    owners = collection.caption_items
    scores = (np.arange(12)[:, None] == owners).astype(np.float32)
    found = evaluate(scores, collection, split="all")
    assert found.metrics["rsum"] == 600
    assert str(found.stamp) == "toy all, 12×24, hit rate, inductive, selection unknown"
    assert found.intervals["rsum"] == (600, 600)


def test_a_matrix_of_equal_scores_finds_nothing_of_worth(collection):
    found = evaluate(np.zeros((12, 24)), collection, split="all")
    assert found.metrics["rsum"] == 0  # ten of twelve or more stand before


def test_the_model_is_scored_as_by_hand(collection, model):
    found = evaluate(model, collection, split="test")
    part = collection.split("test")
    images = [torch.from_numpy(np.load(item.media.path)) for item in part]
    vectors = [model.encode_images([image]) for image in images]
    texts = [model.encode_texts([caption]) for caption in part.captions]
    scores = model.similarity.scores(torch.cat(vectors), torch.cat(texts))
    by_hand = evaluate(scores, part, split="test")
    assert found.metrics["rsum"] == by_hand.metrics["rsum"]
    assert found.metrics["i2t"]["mean_rank"] == by_hand.metrics["i2t"]["mean_rank"]
    assert found.facts["set_sizes"] == [1, 1]


def test_the_stamp_says_who_chose_the_checkpoint_and_what_it_was_trained_on(collection, model):
    model.provenance = {
        "selected_on": "val",
        "data": {"name": "toy"},
        "recipe": {"data": {"train": ["train"], "val": "val"}},
    }
    assert "selected on val" in str(evaluate(model, collection).stamp)
    assert "TRAINED" not in str(evaluate(model, collection).stamp)
    assert "TRAINED ON THIS SPLIT" in str(evaluate(model, collection, split="train").stamp)
    assert "TRAINED ON THIS SPLIT" in str(evaluate(model, collection, split="all").stamp)


def test_a_collection_without_splits_is_not_measured_on_what_was_trained_on(tmp_path, model):
    collection = toy(tmp_path, items=60, splits=False)
    assert evaluate(model, collection).stamp.images == 60
    model.provenance = {"data": {"name": "toy"}}
    held = evaluate(model, collection)
    assert held.stamp.split == "10% held out by id"
    assert held.stamp.images == len(collection.held_out()[0]) < 15
    with pytest.raises(InputError, match="--split all"):
        evaluate(model, collection, split="test")


def test_an_ensemble_is_the_mean_of_scores(collection):
    rng = np.random.default_rng(0)
    one, two = rng.random((12, 24)), rng.random((12, 24))
    found = evaluate([one, two], collection, split="all")
    assert found.metrics["rsum"] == evaluate((one + two) / 2, collection, split="all").metrics["rsum"]
    assert "mean of 2 models" in str(found.stamp)
    with pytest.raises(InputError, match="same pairs"):
        Mean([Matrix(one), Matrix(one.T)])


def test_protocols_refuse_what_is_not_theirs(collection):
    with pytest.raises(InputError, match=r"1000 images.*pairs"):
        evaluate(np.zeros((12, 24)), collection, protocol="f8k-1k", split="all")
    with pytest.raises(PolysemError, match="f30k-1k"):
        evaluate(np.zeros((12, 24)), collection, protocol="f30k")
    with pytest.raises(InputError, match="transposed"):
        evaluate(np.zeros((24, 12)), collection, split="all")
    with pytest.raises(InputError, match="12 images and 24"):
        evaluate(np.zeros((12, 23)), collection, split="all")


def test_five_captions_are_five_captions(tmp_path):
    protocol = protocols.Pairs("five", "", images=3, captions=5)
    with pytest.raises(InputError, match="5 captions of every item; 3"):
        evaluate(np.zeros((3, 6)), toy(tmp_path, items=3), protocol=protocol, split="all")
    more = toy(tmp_path, items=3, captions=6)
    assert evaluate(np.zeros((3, 15)), more, protocol=protocol, split="all").stamp.texts == 15


def test_folds_are_means_over_consecutive_blocks(tmp_path):
    collection = toy(tmp_path, items=10)
    scores = np.random.default_rng(0).random((10, 20))
    protocol = protocols.Pairs("two", "", folds=2, whole=True)
    found = evaluate(scores, collection, protocol=protocol, split="all")
    halves = [
        evaluate(
            scores[5 * half : 5 * half + 5, 10 * half : 10 * half + 10],
            collection.where(range(5 * half, 5 * half + 5)),
            split="all",
        ).metrics
        for half in range(2)
    ]
    assert found.metrics["i2t"]["r1"] == pytest.approx((halves[0]["i2t"]["r1"] + halves[1]["i2t"]["r1"]) / 2, abs=1e-9)
    assert found.metrics["rsum"] == pytest.approx((halves[0]["rsum"] + halves[1]["rsum"]) / 2, abs=1e-9)
    assert found.metrics["whole"]["rsum"] == evaluate(scores, collection, split="all").metrics["rsum"]
    assert "5×10 in 2 folds" in str(found.stamp)


def test_re_scoring_is_stamped(collection):
    scores = np.random.default_rng(0).random((12, 24))
    found = evaluate(scores, collection, split="all", rescore="csls")
    assert "transductive: csls" in str(found.stamp)
    with pytest.raises(InputError, match="folds"):
        evaluate(scores, collection, protocol=protocols.Pairs("two", "", folds=2), split="all", rescore="csls")
    with pytest.raises(PolysemError, match="dual-softmax"):
        evaluate(scores, collection, split="all", rescore="dual")


def test_embeddings_are_kept_with_their_model(collection, model, tmp_path, monkeypatch):
    cache = tmp_path / "kept.safetensors"
    first = evaluate(model, collection, embeddings=cache)
    monkeypatch.setattr(type(model), "encode_texts", lambda *_, **__: pytest.fail("made again"))
    assert evaluate(model, collection, embeddings=cache).metrics == first.metrics
    with torch.no_grad():
        next(model.image.sets.parameters()).add_(1.0)
    with pytest.raises(InputError, match=r"another model.*Delete the file"):
        evaluate(model, collection, embeddings=cache)
    with torch.no_grad():
        next(model.image.sets.parameters()).sub_(1.0)
    (tmp_path / "broken").write_bytes(b"nothing")
    with pytest.raises(InputError, match="no file of embeddings"):
        embed(toy_model(), collection, cache=tmp_path / "broken")


def test_embeddings_of_other_items_are_refused(collection, model, tmp_path):
    cache = tmp_path / "kept.safetensors"
    evaluate(model, collection, embeddings=cache)
    with pytest.raises(InputError, match="other items"):
        evaluate(model, collection, split="train", embeddings=cache)


def test_sets_are_scored_in_tiles_as_in_one(tmp_path, monkeypatch):
    collection, model = toy(tmp_path), toy_model(k=3)
    _speak(model, monkeypatch)
    found = embed(model, collection)
    whole = model.similarity.scores(found.images, found.texts)
    source = Embedded(found.images, found.texts, model.similarity)
    torch.testing.assert_close(torch.from_numpy(source.tile(slice(2, 7), np.array([5, 1, 20]))), whole[2:7, [5, 1, 20]])


@pytest.mark.parametrize("given", [np.zeros((0, 3)), np.zeros(3), np.zeros((3, 3), dtype=int)])
def test_what_is_no_matrix_of_scores(given, collection):
    with pytest.raises(InputError, match="matrix"):
        evaluate(given, collection, split="all")


def test_scores_on_disk(collection, tmp_path):
    scores = np.random.default_rng(0).random((12, 24)).astype(np.float16)
    np.save(tmp_path / "scores.npy", scores)
    found = evaluate(tmp_path / "scores.npy", collection, split="all")
    assert found.metrics["rsum"] == evaluate(scores.astype(np.float32), collection, split="all").metrics["rsum"]
    (tmp_path / "bad.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match="numpy"):
        evaluate(tmp_path / "bad.npy", collection, split="all")
    with pytest.raises(InputError, match="no file"):
        evaluate(tmp_path / "none.npy", collection, split="all")


def test_trec_files(collection, tmp_path):
    evaluate(np.random.default_rng(0).random((12, 24)), collection, split="all", trec_folder=tmp_path / "trec")
    assert {path.name for path in (tmp_path / "trec").iterdir()} == {"i2t.run", "i2t.qrels", "t2i.run", "t2i.qrels"}


def test_the_result_is_json(collection):
    found = evaluate(np.random.default_rng(0).random((12, 24)), collection, split="all").as_dict()
    again = json.loads(json.dumps(found))
    assert again["protocol"]["stamp"].startswith("toy all")
    assert again["metrics"]["i2t.r1"] == again["metrics"]["i2t"]["r1"]
