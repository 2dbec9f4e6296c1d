"""From a model, a run or a matrix to stamped figures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from polysem import models
from polysem.data import train_overlap
from polysem.data.collection import Collection, Item, Media
from polysem.errors import InputError, PolysemError
from polysem.evaluation import evaluate, protocols
from polysem.evaluation.embeddings import embed_collection
from polysem.evaluation.protocols.pairs import PairsProtocol
from polysem.evaluation.score_matrix import EmbeddingScores, EnsembleScores, ScoreMatrix


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
    model.provenance = {"selected_on": "val", "data": {"items": train_overlap.build_sketch(collection.split("train"))}}
    assert "selected on val" in str(evaluate(model, collection).stamp)
    assert "TRAINED" not in str(evaluate(model, collection).stamp)
    renamed = replace(collection, name="renamed")
    assert "TRAINED ON THIS SPLIT" in str(evaluate(model, renamed, split="train").stamp)
    assert "TRAINED ON 67 % OF THIS SPLIT" in str(evaluate(model, renamed, split="all").stamp)
    assert "TRAINED" not in str(evaluate(model, collection.split("test"), split="all").stamp)


def test_a_collection_without_splits_is_not_measured_on_what_was_trained_on(tmp_path, model):
    collection = toy(tmp_path, items=60, splits=False)
    assert evaluate(model, collection).stamp.images == 60
    model.provenance = {"data": {"items": train_overlap.build_sketch(collection.hold_out()[1])}}
    held = evaluate(model, collection)
    assert held.stamp.split == "10% held out by id"
    assert held.stamp.images == len(collection.hold_out()[0]) < 15
    with pytest.raises(InputError, match="--split all"):
        evaluate(model, collection, split="test")


def test_an_ensemble_is_the_mean_of_scores(collection):
    rng = np.random.default_rng(0)
    one, two = rng.random((12, 24)), rng.random((12, 24))
    found = evaluate([one, two], collection, split="all")
    assert found.metrics["rsum"] == evaluate((one + two) / 2, collection, split="all").metrics["rsum"]
    assert "mean of 2 models" in str(found.stamp)
    with pytest.raises(InputError, match="same pairs"):
        EnsembleScores([ScoreMatrix(one), ScoreMatrix(one.T)])


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
    protocol = PairsProtocol("five", "", images=3, captions=5)
    with pytest.raises(InputError, match="5 captions of every item; 3"):
        evaluate(np.zeros((3, 6)), toy(tmp_path, items=3), protocol=protocol, split="all")
    more = toy(tmp_path, items=3, captions=6)
    assert evaluate(np.zeros((3, 15)), more, protocol=protocol, split="all").stamp.texts == 15


def test_folds_are_means_over_consecutive_blocks(tmp_path):
    collection = toy(tmp_path, items=10)
    scores = np.random.default_rng(0).random((10, 20))
    protocol = PairsProtocol("two", "", folds=2, whole=True)
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
        evaluate(scores, collection, protocol=PairsProtocol("two", "", folds=2), split="all", rescore="csls")
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
    with pytest.raises(InputError, match="does not hold embeddings"):
        embed_collection(toy_model(), collection, cache=tmp_path / "broken")


def test_embeddings_of_other_items_are_refused(collection, model, tmp_path):
    cache = tmp_path / "kept.safetensors"
    evaluate(model, collection, embeddings=cache)
    with pytest.raises(InputError, match="other items"):
        evaluate(model, collection, split="train", embeddings=cache)


def test_sets_are_scored_in_tiles_as_in_one(tmp_path, monkeypatch):
    collection, model = toy(tmp_path), toy_model(k=3)
    _speak(model, monkeypatch)
    found = embed_collection(model, collection)
    whole = model.similarity.scores(found.images, found.texts)
    source = EmbeddingScores(found.images, found.texts, model.similarity)
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
    with pytest.raises(InputError, match=r"No such file.*numpy\.save"):
        evaluate(tmp_path / "none.npy", collection, split="all")


def test_trec_files(collection, tmp_path):
    evaluate(np.random.default_rng(0).random((12, 24)), collection, split="all", trec_folder=tmp_path / "trec")
    assert {path.name for path in (tmp_path / "trec").iterdir()} == {"i2t.run", "i2t.qrels", "t2i.run", "t2i.qrels"}


def test_the_result_is_json(collection):
    found = evaluate(np.random.default_rng(0).random((12, 24)), collection, split="all").as_dict()
    again = json.loads(json.dumps(found))
    assert again["protocol"]["stamp"].startswith("toy all")
    assert again["metrics"]["i2t.r1"] == again["metrics"]["i2t"]["r1"]


def test_a_large_training_set_is_known_by_a_few_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(train_overlap, "SKETCH_SIZE", 40)
    collection = toy(tmp_path, items=300, splits=False)
    known = train_overlap.build_sketch(collection.where(range(200)))
    assert train_overlap.estimate_overlap(known, collection.where(range(200))) == 1
    assert train_overlap.estimate_overlap(known, collection.where(range(200, 300))) == 0
    assert 0.4 < train_overlap.estimate_overlap(known, collection) < 0.9


def test_an_image_without_captions_is_still_in_the_gallery(tmp_path):
    collection = toy(tmp_path, items=4)
    items = [replace(item, captions=()) if place == 3 else item for place, item in enumerate(collection)]
    scores = np.zeros((4, 6), np.float32)
    scores[np.arange(6) // 2, np.arange(6)] = 1
    scores[3] = 2  # it is nearer to every caption than its own image is
    found = evaluate(scores, replace(collection, items=items), split="all")
    assert found.stamp.images == 4
    assert found.metrics["t2i"]["r1"] == 0
    assert found.metrics["i2t"]["r1"] == 100
    assert found.metrics["i2t"]["queries_without_positives"] == 1


def test_a_named_protocol_keeps_its_meaning(tmp_path):
    for option in ("images", "folds", "captions", "datasets"):
        with pytest.raises(PolysemError, match="option of protocol f8k-1k"):
            protocols.find("f8k-1k").with_options(**{option: "10"})
    named = replace(protocols.find("f8k-1k"), images=3)
    collection = toy(tmp_path, items=3, captions=5)
    assert "NOT KNOWN TO BE FLICKR8K" in str(evaluate(np.zeros((3, 15)), collection, protocol=named, split="all").stamp)
    known = replace(collection, name="Flickr-8k_v2")
    assert "NOT KNOWN" not in str(evaluate(np.zeros((3, 15)), known, protocol=named, split="all").stamp)


@pytest.mark.parametrize(
    ("protocol", "option", "value"),
    [
        ("pairs", "folds", "1.5"),
        ("pairs", "captions", "-1"),
        ("labels", "k", "abc"),
        ("labels", "unique_texts", "banana"),
    ],
)
def test_options_are_read_as_what_they_are(protocol, option, value):
    with pytest.raises(PolysemError, match=option):
        protocols.find(protocol).with_options(**{option: value})
    assert protocols.find("labels").with_options(k="50", unique_texts="true").k == 50


@pytest.mark.parametrize("images", [1, 3, 5, 11, 16, 40])
@pytest.mark.parametrize("name", ["cosine", "smooth_chamfer", "match_probability"])
def test_captions_that_are_all_the_same_find_nothing(images, name):
    """Equal vectors must have equal scores, wherever they stand: a tie is not a hit."""
    from polysem import similarity
    from polysem.evaluation.ranking import rank_bidirectional

    size = 1 if name == "cosine" else 4
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(images + 1, size, 512, generator=generator), dim=-1)
    source = EmbeddingScores(vectors[:images], vectors[-1:].expand(2 * images, -1, -1), similarity.build(name))
    found, _ = rank_bidirectional(source, np.arange(2 * images) // 2)
    assert found["i2t"].first.tolist() == [2 * images - 2] * images


def test_options_for_models_are_refused_with_a_matrix(collection, tmp_path):
    with pytest.raises(InputError, match="--embeddings is for models"):
        evaluate(np.zeros((12, 24)), collection, split="all", embeddings=tmp_path / "kept")


def test_what_cannot_be_measured_is_null_in_json(collection):
    found = replace(evaluate(np.zeros((12, 24)), collection, split="all"), metrics={"sits": {"spearman": float("nan")}})
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["metrics"]["sits"] == {"spearman": None}


def test_embeddings_of_changed_files_are_refused(collection, model, tmp_path):
    cache = tmp_path / "kept.safetensors"
    evaluate(model, collection, embeddings=cache)
    np.save(collection[0].media.path, np.ones((9, 6), dtype=np.float32))
    with pytest.raises(InputError, match="files have changed"):
        evaluate(model, collection, embeddings=cache)


@pytest.mark.parametrize("side", ["image", "text"])
def test_within_a_side_a_similarity_that_is_not_symmetric_scores_as_a_search_does(side):
    """Rows are queries. Images are searched as by texts, texts as by images."""
    from polysem import similarity
    from polysem.evaluation.evaluate import _score_within
    from support import unit

    part, sets = similarity.build("soft_maximum"), unit(5, 3, 8)
    found = _score_within(side, sets, part).tile(slice(1, 4), slice(None))
    np.testing.assert_allclose(found, part.search_scores(sets[1:4], sets, side).numpy(), atol=1e-6)
    other = part.search_scores(sets[1:4], sets, "text" if side == "image" else "image").numpy()
    assert np.abs(found - other).max() > 1e-3
