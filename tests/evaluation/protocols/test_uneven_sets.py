"""Sets of eight for an image and of one for a text, under `soft_maximum`: measured by every protocol as by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evaluation.sample_coco import CAPTIONS, IMAGES, caption_number, named, package, write_csv
from evaluation.sample_photos import photos
from polysem import models
from polysem.data import train_overlap
from polysem.data.collection import Collection, Item, Media
from polysem.encoders import Tokens
from polysem.errors import InputError
from polysem.evaluation import evaluate, protocols
from polysem.evaluation.embeddings import embed_collection


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> models.Model:
    torch.manual_seed(0)
    sets = {"name": "competing_readings", "hidden": 6}
    model = models.build(
        dim=8,
        image={"encoder": {"name": "region", "input_dim": 6}, "sets": {**sets, "k": 8}},
        text={"encoder": {"name": "bigru", "vocab_size": 40, "word_dim": 5}, "sets": {**sets, "k": 1}},
        similarity={"name": "soft_maximum"},
    ).eval()

    def tokenize(texts: list[str]) -> Tokens:
        return Tokens.from_lists([[2 + sum(map(ord, word)) % 38 for word in text.split()] for text in texts])

    monkeypatch.setattr(model.text.encoder, "tokenize", tokenize)
    return model


def with_features(collection: Collection, folder: Path) -> Collection:
    """The same items with files to read."""
    rng = np.random.default_rng(0)
    items = []
    for number, item in enumerate(collection):
        np.save(folder / f"{number}.npy", rng.standard_normal((4, 6), dtype=np.float32))
        items.append(
            Item(item.id, Media(folder, f"{number}.npy"), item.captions, item.labels, "test", (), item.caption_ids)
        )
    return Collection(collection.name, "features", items)


def obvious_scores(images: torch.Tensor, texts: torch.Tensor, alpha: float = 16.0) -> np.ndarray:
    """Of each image with each text, one pair at a time."""
    scores = np.empty((len(images), len(texts)))
    for i, image in enumerate(torch.nn.functional.normalize(images.double(), dim=-1)):
        for t, text in enumerate(torch.nn.functional.normalize(texts.double(), dim=-1)):
            cosines = (image @ text[0]).numpy()
            shares = np.exp(alpha * cosines) / np.exp(alpha * cosines).sum()
            scores[i, t] = (shares * cosines).sum()
    return scores


def check(model: models.Model, collection: Collection, protocol: Any) -> Any:
    """The protocol's figures of the model are those of its scores by hand."""
    found = evaluate(model, collection, protocol=protocol)
    vectors = embed_collection(model, protocol.gallery(collection.split("test")))
    assert vectors.images.shape[1:] == (8, 8)
    assert vectors.texts.shape[1:] == (1, 8)
    by_hand = evaluate(obvious_scores(vectors.images, vectors.texts), collection, protocol=protocol)
    for way in by_hand.per_query:
        for name, values in by_hand.per_query[way].values.items():
            np.testing.assert_allclose(found.per_query[way].values[name], values, atol=1e-9, err_msg=f"{way}.{name}")
    assert found.facts["set_sizes"] == [8, 1]
    return found


def test_parts(model: models.Model, tmp_path: Path) -> None:
    collection = with_features(photos()[0], tmp_path)
    found = check(model, collection, protocols.find("parts"))
    assert 0 < found.metrics["nouns"]["map"] < 100
    assert found.intervals["nouns.map"][0] < found.intervals["nouns.map"][1]


def test_pairs_with_all_captions_of_an_image(model: models.Model, tmp_path: Path) -> None:
    found = check(model, with_features(photos()[0], tmp_path), protocols.find("pairs"))
    assert {"i2t.map_at_r", "i2t.r_precision", "t2i.map_at_r"} <= found.intervals.keys()


def test_judgements(model: models.Model, tmp_path: Path) -> None:
    items = [Item(f"{n}.jpg", Media(Path(), f"{n}.jpg"), (f"one {n}", f"two {n}"), (), "test") for n in range(5)]
    collection = with_features(Collection("flickr8k", "features", items), tmp_path)
    rows = [f"{n}.jpg\t{m}.jpg#1\t{1 + (n + m) % 4}\t2\t{1 + n % 4}" for n in range(5) for m in range(5) if n != m]
    (tmp_path / "marks.txt").write_text("\n".join(rows))
    found = check(model, collection, protocols.find("judgements").with_options(annotations=tmp_path / "marks.txt"))
    assert 0 < found.metrics["judged_t2i"]["ndcg"] <= 100


def test_eccv_caption(model: models.Model, tmp_path: Path) -> None:
    positives = {
        "eccv_image_to_caption": {IMAGES[0]: [CAPTIONS[0], CAPTIONS[7]], IMAGES[2]: [CAPTIONS[11]]},
        "eccv_caption_to_image": {CAPTIONS[0]: [IMAGES[0], IMAGES[3]]},
    }
    protocol = protocols.find("eccv-caption").with_options(annotations=package(tmp_path / "files", positives))
    found = check(model, with_features(named(), tmp_path), protocol)
    assert "map_at_r" in found.metrics["i2t"]


def test_cxc_with_images_among_images(model: models.Model, tmp_path: Path) -> None:
    """Among images a query is a text's side: the soft maximum over the answer's elements, averaged over the query's."""
    folder = tmp_path / "ratings"
    texts = [f"COCO_val2014:{caption_number(image, 0)}" for image in IMAGES]
    images = [f"COCO_val2014_{image:012}.jpg" for image in IMAGES]
    rating = [5.0, 4.0, 3.0, 1.0, 2.0, 3.5]
    tables = {
        "sits": (("caption", "image"), texts, images[1:] + images[:1]),
        "sts": (("caption1", "caption2"), texts, texts[1:] + texts[:1]),
        "sis": (("image1", "image2"), images, images[1:] + images[:1]),
    }
    for task, (columns, left, right) in tables.items():
        rows = [(a, b, score, "method") for a, b, score in zip(left, right, rating, strict=True)]
        write_csv(folder / f"{task}_test.csv", (*columns, "agg_score", "sampling_method"), rows)
    protocol = protocols.find("cxc").with_options(annotations=folder, images=len(IMAGES), samples=5)
    collection = with_features(named(), tmp_path)
    found = evaluate(model, collection, protocol=protocol)
    assert {"i2t", "t2i", "t2t", "i2i", "sits", "sts", "sis"} <= found.metrics.keys()
    vectors = embed_collection(model, protocol.gallery(collection))
    elements = [obvious_scores(vectors.images, vectors.images[:, n : n + 1]) for n in range(8)]
    among = np.mean(elements, axis=0).T  # (query, answer)
    rows = [(n, (n + 1) % 6) for n in range(6) if rating[n] >= 2.5]
    right = {query: {b for a, b in rows if a == query} | {a for a, b in rows if b == query} for query in range(6)}
    hits = []
    for query in (query for query in range(6) if right[query]):
        order = sorted((answer for answer in range(6) if answer != query), key=lambda answer: -among[query, answer])
        hits.append(100.0 * (order[0] in right[query]))
    assert found.metrics["i2i"]["r1"] == pytest.approx(np.mean(hits))


def test_stored_features_of_captions_are_not_taken_for_queries(model: models.Model, tmp_path: Path) -> None:
    collection = with_features(photos()[0], tmp_path)
    plain = evaluate(model, collection, protocol="parts")
    given = evaluate(model, collection, protocol="parts", text_features=tmp_path / "captions of another place")
    assert given.metrics == plain.metrics


def test_what_was_trained_on_is_known_by_its_own_captions(model: models.Model, tmp_path: Path) -> None:
    collection = with_features(photos()[0], tmp_path)
    model.provenance = {"data": {"items": train_overlap.build_sketch(collection)}}
    assert "TRAINED ON THIS SPLIT" in str(evaluate(model, collection, protocol="parts").stamp)


def test_a_model_of_stored_text_features_cannot_be_asked(tmp_path: Path) -> None:
    side = {"encoder": {"name": "region", "input_dim": 6}, "pool": {"name": "max"}, "sets": {"name": "single"}}
    model = models.build(dim=8, image=side, text=side, similarity={"name": "cosine"})
    with pytest.raises(InputError, match=r"parts asks queries of its own.*--protocol pairs"):
        evaluate(model, with_features(photos()[0], tmp_path), protocol="parts")
