"""Runs that learn labels and predict masked tokens: masked for real, resumable, measured by labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import polysem
from polysem import recipes
from polysem.data import open_collection
from polysem.errors import ConfigError, InputError
from polysem.evaluation import evaluate
from polysem.evaluation.metrics import micro_f1
from polysem.features import LocalFeatures
from polysem.training import backward, train
from polysem.training.build import build_model
from polysem.training.masked_modelling import RATE
from polysem.training.splits import split
from training.killed_runs import killed_after
from training.labelled import assembled, make_labelled, tiny
from training.small import cpu, make_data
from training.test_backward import doubled
from training.test_train import same_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_labelled(tmp_path_factory.mktemp("data") / "toy")


def run(recipe, data, out, **options):
    return train(recipe, data, out, tracker=None, **options)


# ------------------------------------------------------------------------------------------------------------- hiding


def first_batch(feeder):
    """The first batch that hides something of both sides."""
    for batch in feeder.epoch(0):
        if batch.masked.images.any() and batch.masked.texts.any():
            return batch
    raise AssertionError("nothing was masked in a whole epoch")


def guess_loss(model, criterion, batch):
    model.eval()
    with torch.no_grad():
        images, texts = model(batch.images, batch.texts, (None, None), criterion.heads.tower_masks(batch.masked))
        return images.states, texts.states, criterion.heads(images.states, texts.states, batch.masked).total


@pytest.mark.parametrize(("name", "seen"), [("semantic-sharing", False), ("semantic-sharing-official", True)])
def test_a_hidden_region_cannot_be_seen_but_by_the_released_code(name, seen, data):
    model, criterion, feeder = assembled(tiny(name), data)
    batch = first_batch(feeder)
    changed = batch.images.values.clone()
    changed[batch.masked.images] += 3.0
    other = replace(batch, images=LocalFeatures(changed, batch.images.mask))
    states, _, loss = guess_loss(model, criterion, batch)
    altered, _, other_loss = guess_loss(model, criterion, other)
    assert bool((states - altered).abs().max() > 1e-4) == seen
    assert bool(abs(loss - other_loss) > 1e-4) == seen


def test_a_region_that_is_not_hidden_is_seen(data):
    model, criterion, feeder = assembled(tiny("semantic-sharing"), data)
    batch = first_batch(feeder)
    changed = batch.images.values.clone()
    changed[~batch.masked.images] += 1.0
    states = guess_loss(model, criterion, batch)[0]
    altered = guess_loss(model, criterion, replace(batch, images=LocalFeatures(changed, batch.images.mask)))[0]
    assert (states - altered)[batch.masked.images].abs().max() > 1e-4


def test_a_hidden_word_is_a_mask_that_no_other_word_is(data):
    """In the released vocabularies <mask> is missing and becomes <unk>."""
    model, _, feeder = assembled(tiny("semantic-sharing"), data)
    batch, encoder = first_batch(feeder), model.text.encoder
    chosen = batch.masked.texts
    assert (batch.texts.ids[chosen] == encoder.mask_id).all()
    assert not (batch.texts.ids[~chosen] == encoder.mask_id).any()
    assert encoder.mask_id not in (encoder.vocabulary.encode("xyzzy")[1], 0)
    told = feeder.masker.words[batch.masked.words[chosen]]
    assert not (told == encoder.mask_id).any()  # what is asked for is what stood there
    assert not chosen[:, 0].any()
    lengths = batch.texts.mask.sum(1)
    assert not chosen[torch.arange(len(chosen)), lengths - 1].any()


def test_what_is_hidden_is_a_function_of_seed_epoch_and_item(data):
    _, _, feeder = assembled(tiny("semantic-sharing"), data)
    masker, mask = feeder.masker, torch.ones(400, 20, dtype=torch.bool)
    keys = [f"item {n}" for n in range(400)]
    first = masker.draw(mask, keys, 0, protect_ends=False)
    assert torch.equal(first, masker.draw(mask, keys, 0, protect_ends=False))
    assert torch.equal(first[7:9], masker.draw(mask[:2], keys[7:9], 0, protect_ends=False))
    assert not torch.equal(first, masker.draw(mask, keys, 1, protect_ends=False))
    assert first.float().mean() == pytest.approx(RATE, abs=0.01)
    lone = masker.draw(torch.ones(400, 1, dtype=torch.bool), keys, 0, protect_ends=False)
    assert not lone.any()  # an item is never masked whole


def test_stored_features_of_hidden_words_are_hidden_by_the_tower(data):
    model, criterion, feeder = assembled(tiny("semantic-sharing"), data)
    masker, batch = feeder.masker, first_batch(feeder)
    places, keys = np.arange(4), ["a", "b", "c", "d"]
    with torch.no_grad():
        stored = model.text.encoder(masker.encoder.tokenize(masker.captions[:4]))
    image_keys = [str(number) for number in range(len(batch.images))]
    fed, masked = masker.mask(batch.images, image_keys, stored, places, keys, 0)
    assert fed is stored
    assert not masked.replaced
    chosen = criterion.heads.tower_masks(masked)[1]
    _, read = model.text.encode(fed, None, chosen)
    assert masked.texts.any()
    assert (read.values[masked.texts] == criterion.heads.text_mask).all()
    assert torch.equal(read.values[~masked.texts], stored.values[~masked.texts])
    shorter = LocalFeatures(stored.values[:, :-1], stored.mask[:, :-1])
    with pytest.raises(InputError, match="not one for each of their tokens"):
        masker.mask(batch.images, image_keys, shorter, places, keys, 0)


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", ["semantic-sharing-consistency", "dscmr"])
def test_cached_gradients_equal_those_of_the_whole_batch(name, chunk, data):
    model, criterion, feeder = assembled(tiny(name, "training.captions=2"), data)
    model.double().train()
    criterion.double()
    batch = doubled(next(iter(feeder.epoch(0))))

    def step(size):
        model.zero_grad()
        criterion.zero_grad()
        loss, _ = backward.run_batch(model, criterion, batch, cpu(), chunk=size)
        parameters = [*model.named_parameters(), *criterion.named_parameters()]
        return loss, {key: p.grad.clone() for key, p in parameters if p.grad is not None}

    whole, expected = step(None)
    cached, found = step(chunk)
    torch.testing.assert_close(cached.total, whole.total)
    assert expected.keys() == found.keys()
    assert ("heads.words.weight" in expected) == (name != "dscmr")
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-6, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")


# --------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("name", ["semantic-sharing", "semantic-sharing-independent", "dscmr"])
def test_labels_are_learned_and_measured(name, data, tmp_path):
    more = ("training.epochs=25", "training.validate_every=25", "training.captions=all", "optimiser.lr=5e-3")
    result = run(tiny(name, *more), data, tmp_path / "run")
    labels = result.best["labels"]
    assert labels.keys() == {"ndcg50", "map", "micro_f1"}
    assert labels["micro_f1"]["image"] > 25  # an untrained one holds every label for unlikely: 0
    assert labels["micro_f1"]["text"] > 10
    model = polysem.load(tmp_path / "run")
    assert (model.text.sets is model.image.sets) == (name != "semantic-sharing-independent")
    assert not any("heads" in name or "mask" in name for name in model.state_dict())
    items = open_collection(data).split("val")
    found = evaluate(model, items, protocol="labels", split="val", intervals=False)
    assert found.metrics["micro_f1"].keys() == {"image", "text"}
    said = model.classify_texts(items.captions)
    assert said.shape == (40, len(model.labels))
    truth = [items[owner].labels for owner in items.caption_items]
    assert found.metrics["micro_f1"]["text"] == pytest.approx(micro_f1(said, truth, model.labels))
    assert found.metrics["micro_f1"]["text"] == pytest.approx(labels["micro_f1"]["text"], abs=1e-6)
    kept = tmp_path / "kept.safetensors"
    for _ in range(2):  # made, then read
        again = evaluate(model, items, protocol="labels", split="val", intervals=False, embeddings=kept)
        assert again.metrics["micro_f1"] == found.metrics["micro_f1"]
    said = (tmp_path / "run" / "README.md").read_text()
    assert "NDCG@50 by shared labels" in said
    assert "Validation by labels" in (tmp_path / "run" / "report.html").read_text()


def test_the_saved_model_is_the_best_by_labels(data, tmp_path):
    result = run(
        tiny("semantic-sharing", "training.epochs=6", "training.captions=all", "optimiser.lr=5e-3"),
        data,
        tmp_path / "run",
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = {line["step"]: sum(line["labels"]["ndcg50"].values()) for line in lines if line["kind"] == "validation"}
    assert found[result.best["step"]] == max(found.values())
    step = next(line for line in lines if line["kind"] == "step")
    assert {"image", "text", "words", "regions"} == step["parts"].keys()


@pytest.mark.parametrize("after", [1, 5, 8])
def test_a_run_cut_anywhere_ends_in_the_same_bits(after, data, tmp_path):
    chosen = tiny("semantic-sharing", "training.checkpoint_every=3", "training.captions=all", "image.sets.dropout=0.2")
    run(chosen, data, tmp_path / "straight")
    with killed_after(after):
        run(chosen, data, tmp_path / "cut")
    assert run(chosen, data, tmp_path / "cut").resumed_from > after - 3
    assert same_run(tmp_path / "straight", tmp_path / "cut")


def test_a_model_saved_and_loaded_says_the_same(data, tmp_path):
    model, _, _ = assembled(tiny("semantic-sharing", "image.sets.read=cls"), data)
    model.eval().save(tmp_path / "model")
    twin = polysem.load(tmp_path / "model")
    regions = [torch.randn(5, 10), torch.randn(3, 10)]
    assert twin.fingerprint() == model.fingerprint()
    assert twin.labels == model.labels
    assert torch.equal(twin.classify_images(regions), model.classify_images(regions))
    assert torch.equal(twin.encode_images(regions), model.encode_images(regions))
    assert twin.text.sets is twin.image.sets
    alone = torch.cat([twin.encode_images([one]) for one in regions])
    torch.testing.assert_close(twin.encode_images(regions), alone, atol=1e-5, rtol=0)


# ------------------------------------------------------------------------------------------------------------- errors


def test_data_without_labels_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match="no labels to learn from"):
        run(tiny("semantic-sharing"), make_data(tmp_path / "bare"), tmp_path / "run")


def test_a_model_without_classes_says_so(data):
    recipe = recipes.load("vse-infty", ["dim=16", "text.encoder.word_dim=8", "data.min_count=1"])
    from polysem.training.build import build_model

    model = build_model(recipe, open_collection(data))
    assert model.labels is None
    with pytest.raises(InputError, match="knows no classes"):
        model.classify_texts(["a red dog"])


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["image.sets.name=single", "text.sets.name=single", "dim=8"], "predicts none"),
        (["dim=labels", "image.sets.embed=state"], "give dim a number"),
        (["text.augment.words=true"], "both mask words"),
        (["image.encoder.name=grid", "image.encoder.trainable=all"], "image encoder's change"),
        (["image.encoder.name=grid"], r"image encoder's change.*image\.project\.dim=1024"),
        (["objective.lambda=-1"], "greater than or equal to 0"),
        (["objective.eta=x"], "valid number"),
    ],
)
def test_recipes_that_cannot_work_are_refused(overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        recipes.load("semantic-sharing", overrides)


def test_features_of_a_width_that_the_classifier_does_not_read_are_refused_at_once(data):
    recipe = tiny("semantic-sharing", "image.encoder.dim=8")
    with pytest.raises(ConfigError, match=r"image\.sets reads features of width 16; .* have 8.*image\.encoder\.dim=16"):
        build_model(recipe, split(open_collection(data), recipe.data).train)
