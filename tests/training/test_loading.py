"""What the towers are fed: the right items, augmented by seed, epoch and item alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from polysem import recipes
from polysem.data import open_collection
from polysem.encoders import Tokens
from polysem.features import LocalFeatures
from polysem.models.embedding import FeatureItems, ImageItems, SentenceItems
from polysem.training import train
from polysem.training.loading import TrainingBatch
from polysem.training.splits import split
from sample_data import karpathy
from training.small import assembled, make_data, tiny

PICTURES = [
    "dim=8",
    "image.encoder={name: grid, model: tiny, pretrained: false, dim: 8, image_size: 32, trainable: all, "
    "mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5], interpolation: bilinear, "
    "backbone_config: {model_type: resnet, embedding_size: 4, hidden_sizes: [4, 8], depths: [1, 1], "
    "layer_type: basic}}",
    "image.sets={name: single, pooling: mean}",
    "image.augment={drop: grid, pixels: true}",
    "text.encoder={name: bigru, word_dim: 4}",
    "data.min_count=1",
    "training.batch=4",
    "training.epochs=2",
]


@pytest.fixture
def pictures(tmp_path) -> Path:
    entries = [{"filename": f"{i}.png", "split": "val" if i % 4 == 0 else "train"} for i in range(12)]
    return karpathy(tmp_path / "toy", entries)


def fed(recipe, data, epoch=0) -> list[TrainingBatch]:
    return list(assembled(recipe, data)[3].epoch(epoch))


def same(one: TrainingBatch, other: TrainingBatch) -> bool:
    def equal(a, b) -> bool:
        if isinstance(a, LocalFeatures):
            return torch.equal(a.values, b.values) and torch.equal(a.mask, b.mask)
        return torch.equal(a.ids, b.ids) if isinstance(a, Tokens) else torch.equal(a, b)

    keeps = [(one.image_keep, other.image_keep), (one.text_keep, other.text_keep)]
    return (
        equal(one.images, other.images)
        and equal(one.texts, other.texts)
        and all((a is None and b is None) or torch.equal(a, b) for a, b in keeps)
        and torch.equal(one.positives, other.positives)
    )


def test_an_epoch_is_fed_the_same_twice_and_another_differently(tmp_path):
    data = make_data(tmp_path)
    first, again, later = (fed(tiny("vse-infty"), data, epoch) for epoch in (1, 1, 2))
    assert all(same(one, other) for one, other in zip(first, again, strict=True))
    assert not all(same(one, other) for one, other in zip(first, later, strict=True))


def test_beginning_in_the_middle_is_fed_what_would_have_come(tmp_path):
    feeder = assembled(tiny("vse-infty"), make_data(tmp_path))[3]
    whole, rest = list(feeder.epoch(1)), list(feeder.epoch(1, start=7))
    assert len(whole) == len(rest) + 7
    assert all(same(one, other) for one, other in zip(whole[7:], rest, strict=True))


def test_an_item_is_augmented_alike_in_any_company(tmp_path):
    _, _, _, feeder = assembled(tiny("vse-infty"), make_data(tmp_path))
    places = np.array([3, 9, 14])
    together = feeder.images.keep(feeder.images.load(places, 4), places, 4)
    for row, place in enumerate(places):
        alone = np.array([place])
        assert torch.equal(together[row], feeder.images.keep(feeder.images.load(alone, 4), alone, 4)[0])
    texts = feeder.texts.load(places, 4)
    for row, place in enumerate(places):
        single = feeder.texts.load(np.array([place]), 4)
        assert texts.ids[row][texts.mask[row]].tolist() == single.ids[0].tolist()


def test_validation_sees_items_as_they_are(tmp_path):
    _, _, _, feeder = assembled(tiny("vse-infty"), make_data(tmp_path))
    texts = feeder.texts.items
    assert torch.equal(texts.batch(range(6)).ids, texts.encoder.tokenize(texts.values[:6]).ids)


def test_captions_follow_their_images(tmp_path):
    recipe = tiny("vse-infty", "text.augment.words=false", "training.captions=all")
    model, _, batches, feeder = assembled(recipe, make_data(tmp_path))
    train_split = split(open_collection(tmp_path), recipe.data).train
    for plan, batch in zip(batches.epoch(0), feeder.epoch(0), strict=True):
        expected = [caption for image in plan.images for caption in train_split[int(image)].captions]
        decoded = [
            " ".join(model.text.encoder.vocabulary.decode(row[1 : n - 1]))
            for row, n in zip(batch.texts.ids.tolist(), batch.texts.lengths.tolist(), strict=True)
        ]
        assert sorted(decoded) == sorted(expected)
        assert isinstance(feeder.images.items, FeatureItems)
        assert isinstance(feeder.texts.items, SentenceItems)


def test_pixels_are_augmented_by_item_and_epoch(pictures):
    recipe = recipes.load("vse-infty", PICTURES)
    _, _, _, feeder = assembled(recipe, pictures)
    assert isinstance(feeder.images.items, ImageItems)
    places = np.array([0, 5])
    first, again = feeder.images.load(places, 0), feeder.images.load(places, 0)
    assert torch.equal(first, again)
    assert not torch.equal(first, feeder.images.load(places, 1))
    assert torch.equal(first[1], feeder.images.load(np.array([5]), 0)[0])
    plain = feeder.images.items.batch(places.tolist())
    assert not torch.equal(plain, first)


def test_a_network_trains_from_pixels_after_its_rest(pictures, tmp_path):
    recipe = recipes.load("vse-infty", [*PICTURES, "image.frozen_epochs=1"])
    before = {n: p.clone() for n, p in assembled(recipe, pictures)[0].image.encoder.backbone.named_parameters()}
    result = train(recipe, pictures, tmp_path / "run", tracker=None)
    assert result.status == "finished"
    from safetensors.torch import load_file

    last = load_file(next((tmp_path / "run" / "checkpoints").glob("last-*")) / "state.safetensors")
    moved = [n for n, p in before.items() if not torch.equal(last[f"model/image.encoder.backbone.{n}"], p)]
    assert moved


def test_frozen_features_come_from_a_store_and_the_model_still_takes_pictures(pictures, tmp_path):
    import polysem

    frozen = [
        *(entry for entry in PICTURES if not entry.startswith("image.")),
        PICTURES[1].replace(" dim: 8,", "").replace("trainable: all", "trainable: none"),
        "image.project={name: region, form: linear}",
        "image.sets={name: single, pooling: mean}",
        "image.augment={drop: grid}",
    ]
    recipe = recipes.load("vse-infty", frozen)
    train(recipe, pictures, tmp_path / "run", tracker=None, features=tmp_path / "store")
    store = polysem.data.FeatureStore.open(tmp_path / "store")
    assert len(store) == 12
    model = polysem.load(tmp_path / "run")
    items = list(open_collection(pictures))[:3]
    from_pictures = model.encode_images([item.media.path for item in items])
    from_store = model.encode_images(store.batch(store.positions([item.id for item in items])))
    torch.testing.assert_close(from_pictures, from_store, atol=2e-3, rtol=0)  # the store is float16


def test_features_of_other_content_are_not_taken(pictures, tmp_path):
    from polysem.errors import InputError
    from polysem.training import feature_cache

    collection = open_collection(pictures)
    store = tmp_path / "store"
    store.mkdir()
    (store / feature_cache.CONTENTS).write_text(json.dumps(feature_cache.checksums(collection, "tokens")))
    feature_cache.check_contents(store, collection, "tokens")
    items = [type(item)(item.id, item.media, ("other", *item.captions[1:]), (), item.split) for item in collection]
    other = type(collection)(collection.name, collection.kind, items)
    with pytest.raises(InputError, match="another content"):
        feature_cache.check_contents(store, other, "tokens")
