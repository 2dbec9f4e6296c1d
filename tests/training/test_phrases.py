"""Phrases of captions as texts to train on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from encoders import tiny_models
from polysem import encoders, recipes
from polysem.data import Vocabulary, open_collection
from polysem.errors import ConfigError, InputError
from polysem.features import LocalFeatures
from polysem.models.embedding import BatchItems, SentenceItems
from polysem.recipes.schema import Phrases
from polysem.training import train
from polysem.training.phrases import CaptionsAndPhrases, find_phrases, join_phrases
from polysem.training.run_folder import read_metrics
from sample_data import karpathy
from training.killed_runs import killed_after
from training.small import assembled, make_data, tiny, weights

THINGS = ("dog", "cat", "ball")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    captions = [[f"a red {THINGS[i % 3]} on the grass", f"there is a {THINGS[i % 3]} in a garden"] for i in range(18)]
    entries = [{"filename": f"{i}.png", "split": "train", "captions": captions[i]} for i in range(18)]
    return karpathy(tmp_path_factory.mktemp("photos"), entries).parent


def test_a_phrase_is_true_of_every_image_whose_captions_name_it(photos):
    found = {phrase.text: phrase.items for phrase in find_phrases(open_collection(photos), Phrases(share=0.5))}
    assert found["a dog"] == found["a red dog"] == tuple(range(0, 18, 3))
    assert "a grass" not in found  # in every image
    assert find_phrases(open_collection(photos), None) == []


def test_captions_that_name_nothing_are_an_error_with_the_way_out(photos):
    with pytest.raises(InputError, match="name nothing in at least 19 of its 18 images"):
        find_phrases(open_collection(photos), Phrases(least=19))


def test_captions_and_phrases_are_each_what_they_are_alone():
    torch.manual_seed(0)
    captions = LocalFeatures.from_list([torch.randn(n, 4) for n in (3, 1, 5)])
    phrases = LocalFeatures.from_list([torch.randn(n, 4) for n in (2, 6)])
    items = CaptionsAndPhrases(BatchItems(captions), phrases)
    assert len(items) == 5
    rows = [4, 1, 0, 3, 2]
    made = items.batch(rows)
    for place, row in enumerate(rows):
        source, position = (captions, row) if row < 3 else (phrases, row - 3)
        own = source.values[position][source.mask[position]]
        assert torch.equal(made.values[place][made.mask[place]], own)
    assert items.batch([1, 0]).values.shape[0] == 2
    assert items.batch([3]).values.shape[0] == 1


def test_phrases_are_encoded_as_sentences_are(tmp_path):
    encoder = encoders.build("transformer", model=str(tiny_models.save("bert", tmp_path / "bert")), trainable="none")
    texts = ["a dog", "a red dog on grass"]
    sentences = join_phrases(encoder, SentenceItems(encoder, ["a cat"]), texts)
    assert sentences.values == ["a cat", *texts]
    features = LocalFeatures(torch.zeros(1, 2, encoder.dim), torch.ones(1, 2, dtype=torch.bool))
    joined = join_phrases(encoder, BatchItems(features), texts)
    with torch.no_grad():
        expected = encoder.eval()(encoder.tokenize(texts[:1]))
    made = joined.batch([1])
    torch.testing.assert_close(made.values[0][made.mask[0]], expected.values[0][expected.mask[0]], atol=1e-5, rtol=0)


PHRASED = ("phrases={weight: 0.5, least: 2, share: 1}", "auxiliary=[{on: residual}]", "training.epochs=2")


def test_the_loss_of_phrases_is_the_objective_once_more(tmp_path):
    data = make_data(tmp_path / "toy", english=True)
    model, criterion, _, loader = assembled(tiny("vse-infty", *PHRASED[:1]), data)
    batch = next(iter(loader.epoch(0)))
    images, texts = model(batch.images, batch.texts, (None, None))
    found = criterion(images, texts, batch, model.similarity)[0]
    scores = model.similarity.scores(images.vectors, texts.vectors)
    parts = [
        criterion.objective(scores[:, columns], batch.positives[:, columns]).total
        for columns in (~batch.phrases, batch.phrases)
    ]
    assert 0 < batch.phrases.sum() < len(batch.phrases)
    torch.testing.assert_close(found.total, parts[0] + 0.5 * parts[1])


def test_phrases_are_not_augmented(tmp_path):
    model, _, _, loader = assembled(
        tiny("vse-infty", PHRASED[0], "text.augment.rate=0.9"), make_data(tmp_path, english=True)
    )
    source, encoder = loader.texts, model.text.encoder
    count = len(source.keys)
    texts = source.items.values
    rows = np.arange(count, len(texts))
    assert source.load(rows, 0).ids.tolist() == encoder.tokenize(texts[count:]).ids.tolist()
    assert source.load(rows - count, 0).ids.shape != encoder.tokenize(texts[: len(rows)]).ids.shape


def test_a_batch_without_phrases_has_the_loss_of_its_captions(tmp_path):
    model, criterion, _, loader = assembled(tiny("vse-infty", PHRASED[0]), make_data(tmp_path, english=True))
    batch = next(iter(loader.epoch(0)))
    images, texts = model(batch.images, batch.texts, (None, None))
    none = replace(batch, phrases=torch.zeros_like(batch.phrases))
    found = criterion(images, texts, none, model.similarity)[0]
    assert "phrases" not in found.parts
    scores = model.similarity.scores(images.vectors, texts.vectors)
    torch.testing.assert_close(found.total, criterion.objective(scores, batch.positives).total)


def test_words_that_the_encoder_does_not_know_are_not_asked_for(photos):
    known = Vocabulary.build(["a dog on a red dog"], min_count=1)
    found = find_phrases(open_collection(photos), Phrases(share=0.5), known)
    assert [phrase.text for phrase in found] == ["a dog", "a red dog"]


@pytest.mark.slow
def test_a_run_with_phrases_resumes_and_logs_their_loss(tmp_path):
    data = make_data(tmp_path / "toy", english=True)
    recipe = tiny("vse-infty", *PHRASED)
    train(recipe, data, tmp_path / "straight", tracker=None)
    with killed_after(3):
        train(recipe, data, tmp_path / "killed", tracker=None)
    train(recipe, data, tmp_path / "killed", tracker=None)
    straight, killed = weights(tmp_path / "straight"), weights(tmp_path / "killed")
    assert all(torch.equal(straight[name], killed[name]) for name in straight)
    steps = [line for line in read_metrics(tmp_path / "straight" / "metrics.jsonl") if line["kind"] == "step"]
    assert any("phrases" in str(line) for line in steps)


def test_labels_take_no_phrases():
    with pytest.raises(ConfigError, match="phrases: they are matched with images"):
        recipes.load("semantic-sharing", ["phrases={}"])
