"""A model as a recipe and a collection ask for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import PositiveInt
from torch import nn

from polysem.data import open_collection
from polysem.encoders import TextEncoder, Tokens
from polysem.encoders.base import registry
from polysem.errors import ConfigError
from polysem.features import LocalFeatures
from polysem.training.build import build_model
from training.small import make_data, tiny


@pytest.fixture
def word_table(monkeypatch: pytest.MonkeyPatch) -> type[TextEncoder]:
    """An encoder of another package that learns its words."""
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))

    @registry.register("word_table")
    class WordTable(TextEncoder):
        learns_vocabulary = True

        def __init__(self, vocab_size: PositiveInt, dim: PositiveInt) -> None:
            super().__init__()
            self.vocab_size, self.dim, self.table = vocab_size, dim, nn.Embedding(vocab_size, dim)

        def encode_texts(self, texts: list[str]) -> Tokens:
            return Tokens.from_lists([self.vocabulary.encode(text) for text in texts])

        def forward(self, tokens: Tokens) -> LocalFeatures:
            return LocalFeatures(self.table(tokens.ids), tokens.mask)

    return WordTable


def test_every_encoder_that_learns_its_words_is_given_them(word_table, tmp_path, monkeypatch):
    def take(self: Any, vocabulary: Any, vectors: Any = None) -> None:
        self.vocabulary = vocabulary

    monkeypatch.setattr(word_table, "set_vocabulary", take)
    train = open_collection(make_data(tmp_path)).split("train")
    model = build_model(tiny("vse-infty", "text.encoder={name: word_table, dim: 16}"), train)
    assert "boat" in model.text.encoder.vocabulary
    assert model.text.encoder.tokenize(["a red boat"]).ids.max() < model.text.encoder.vocab_size


def test_an_encoder_that_cannot_take_its_words_is_named(word_table, tmp_path):
    train = open_collection(make_data(tmp_path)).split("train")
    with pytest.raises(ConfigError, match="WordTable takes no vocabulary"):
        build_model(tiny("vse-infty", "text.encoder={name: word_table, dim: 16}"), train)


def test_word_vectors_are_the_first_rows_of_known_words(tmp_path):
    train = open_collection(make_data(tmp_path)).split("train")
    glove = tmp_path / "glove.txt"
    glove.write_text("boat " + " ".join(map(str, range(8))) + "\n")
    plain = build_model(tiny("vse-infty"), train).text.encoder
    encoder = build_model(tiny("vse-infty", f"data.glove={glove}"), train).text.encoder
    row = encoder.vocabulary["boat"]
    assert encoder.embedding.weight[row].tolist() == list(range(8))
    others = np.arange(encoder.vocab_size) != row
    assert torch.equal(encoder.embedding.weight[others], plain.embedding.weight[others])
    with pytest.raises(ConfigError, match="word_dim=4, but the word vectors have 8 dimensions"):
        build_model(tiny("vse-infty", f"data.glove={glove}", "text.encoder.word_dim=4"), train)
