"""The bidirectional GRU over word embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from polysem import dropout as dropped
from polysem.data.vocabulary import Vocabulary, WordVectors
from polysem.encoders.base import registry
from polysem.encoders.cpu import fast_gru
from polysem.encoders.text import TextEncoder, Tokens
from polysem.errors import ConfigError, InputError
from polysem.features import LocalFeatures
from polysem.masked_ops import is_tracing

VOCABULARY_FILE = "vocabulary.json"


@registry.register("bigru")
class BiGRU(TextEncoder):
    """Word embeddings read by a bidirectional GRU, the two directions averaged: the text tower of VSE∞, VSE+2AD, DivE.

    The averaged final state is the features' `summary`. local "states" gives the GRU's states, (B, N, dim); "words"
    gives the word embeddings, (B, N, word_dim), as DivE's set predictor reads them.

    Word ids come from the vocabulary, set after building. The row of `<pad>` is an ordinary vector that nobody reads,
    unless by variant "official": DivE's released code leaves it where a word is missing, and its set
    predictor takes it in. `dropout` acts on words, states and summary (DivE: 0.1).
    """

    makes_summary = True
    learns_vocabulary = True
    official_keys = {
        "embed.weight": "embedding.weight",
        **{
            f"rnn.{tensor}_l0{way}": f"gru.{tensor}_l0{way}"
            for tensor in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            for way in ("", "_reverse")
        },
    }

    def __init__(
        self,
        vocab_size: PositiveInt,
        dim: PositiveInt = 1024,
        word_dim: PositiveInt = 300,
        local: Literal["states", "words"] = "states",
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        max_length: PositiveInt = 128,
        variant: Literal["paper", "official"] = "paper",
        trainable: Literal["none", "all"] = "all",
        lr_scale: float = 1.0,
    ) -> None:
        super().__init__(trainable, lr_scale)
        self.vocab_size, self.local, self.max_length, self.variant = vocab_size, local, max_length, variant
        self.dim, self.summary_dim = (dim if local == "states" else word_dim), dim
        self.vocabulary: Vocabulary | None = None
        self.embedding = nn.Embedding(vocab_size, word_dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.gru = nn.GRU(word_dim, dim, batch_first=True, bidirectional=True)
        self.dropout = dropped.Dropout(dropout)
        self.set_trainable(trainable)

    def set_vocabulary(self, vocabulary: Vocabulary, vectors: WordVectors | None = None) -> None:
        self.vocabulary = vocabulary
        if vectors is not None:  # words that are not known keep their random start
            rows, known = map(torch.from_numpy, vectors)
            dim, width = rows.shape[1], self.embedding.embedding_dim
            if dim != width:
                self.reject_knobs(f"word_dim={width}, but the word vectors have {dim} dimensions. Set word_dim={dim}.")
            self.embedding.weight.data[known] = rows[known]

    def encode_texts(self, texts: list[str]) -> Tokens:
        if self.vocabulary is None:
            raise ConfigError("This bigru has no vocabulary. Give set_vocabulary() the one it was trained with.")
        return Tokens.from_lists([self.vocabulary.encode(text)[: self.max_length] for text in texts])

    def forward(self, tokens: Tokens) -> LocalFeatures:
        ids = tokens.ids.masked_fill(~tokens.mask, 0)
        if not is_tracing() and (len(tokens) == 0 or int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size):
            raise InputError(
                f"This bigru knows word ids 0 to {self.vocab_size - 1}; got {len(tokens)} text(s) with ids up to "
                f"{int(ids.max()) if len(tokens) else None}. Build it with vocab_size=len(vocabulary)."
            )
        words = self.dropout(self.embedding(ids))
        # States (B, N, dim) and the final state (B, dim): each the mean of both directions.
        if is_tracing():
            states, last = fast_gru.run_padded(self.gru, words, tokens.lengths)
        elif fast_gru.can_run(self.gru, words):
            packing = fast_gru.Packing(tokens.lengths)
            cells = packing.cells(words.shape[1])
            rows, last = fast_gru.run(self.gru, words.flatten(0, 1).index_select(0, cells), packing)
            states = rows.new_zeros(words.shape[0] * words.shape[1], rows.shape[1]).index_copy(0, cells, rows)
            states = states.view(*words.shape[:2], -1)
        else:
            packed = pack_padded_sequence(words, tokens.lengths.cpu(), batch_first=True, enforce_sorted=False)
            both, ends = self.gru(packed)
            both, _ = pad_packed_sequence(both, batch_first=True, total_length=words.shape[1])
            states, last = torch.stack(both.chunk(2, dim=-1)).mean(0), ends.mean(0)
        local = self.dropout(states) if self.local == "states" else words
        features = LocalFeatures(local, tokens.mask, self.dropout(last))
        return features if self.variant == "official" else features.zero_padding()

    @property
    def mask_id(self) -> int:
        known = None if self.vocabulary is None else self.vocabulary.mask_id
        return super().mask_id if known is None else known

    def save_preprocessing(self, folder: Path) -> None:
        if self.vocabulary is not None:
            self.vocabulary.save(folder / VOCABULARY_FILE)

    def load_preprocessing(self, folder: Path) -> None:
        self.vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)

    def preprocessing_bytes(self) -> Iterable[bytes]:
        return () if self.vocabulary is None else ("\n".join(self.vocabulary.entries).encode(),)
