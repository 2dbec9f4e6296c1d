"""Text encoders: sentences to tokens, tokens to local features; and those of pretrained transformers."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional as F

from polysem.data.vocabulary import Vocabulary, WordVectors
from polysem.encoders import backbones
from polysem.encoders.backbones import SourceError
from polysem.encoders.base import Encoder, Kind, Takes, Trainable, registry
from polysem.encoders.region import xavier_linear
from polysem.errors import ConfigError, InputError, kind
from polysem.features import LocalFeatures, group_by_length
from polysem.masked_ops import is_tracing


@dataclass(frozen=True, eq=False)
class Tokens:
    """A batch of tokenised texts.

    ids: (B, N) whole numbers. mask: (B, N) bool, True where a token is real; each text's tokens come first.
    """

    ids: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        if is_tracing():  # a graph cannot refuse its input
            return
        ids, mask = self.ids, self.mask
        if ids.ndim != 2 or ids.dtype != torch.long:
            raise InputError(f"Tokens.ids must be a long (texts, tokens) tensor, got {kind(ids)}.")
        if mask.shape != ids.shape or mask.dtype != torch.bool:
            raise InputError(f"Tokens.mask must be bool of shape {tuple(ids.shape)}, got {kind(mask)}.")
        if not bool(mask[:, :1].all()) or bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise InputError("Tokens: every text needs at least one real token, and its real tokens must come first.")

    @classmethod
    def from_lists(cls, ids: Sequence[Sequence[int]], pad: int = 0) -> Tokens:
        """Pad lists of ids to the longest."""
        lengths = torch.tensor([len(row) for row in ids])
        longest = int(lengths.max()) if len(ids) else 0
        padded = torch.full((len(ids), longest), pad, dtype=torch.long)
        for row, text in zip(padded, ids, strict=True):
            row[: len(text)] = torch.tensor(text, dtype=torch.long)
        return cls(padded, torch.arange(longest) < lengths[:, None])

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(1)

    def to(self, device: torch.device | str) -> Tokens:
        return Tokens(self.ids.to(device), self.mask.to(device))


class TextEncoder(Encoder):
    """Texts to `Tokens` by `tokenize`, `Tokens` to `LocalFeatures` by calling it."""

    kind: ClassVar[Kind] = "text"
    takes: ClassVar[Takes] = "tokens"
    vocab_size: int

    def set_vocabulary(self, vocabulary: Vocabulary, vectors: WordVectors | None = None) -> None:
        """Take the words of the training captions, if the class `learns_vocabulary`. vectors: of `load_glove`."""
        raise ConfigError(f"{type(self).__name__} takes no vocabulary: it has to define set_vocabulary().")

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """The tokens of each text, padded to the longest. A text of more than `max_length` tokens loses the rest."""
        if isinstance(texts, str):
            raise InputError("tokenize() takes a list of texts, got a single one. Write tokenize([text]).")
        given = list(texts)
        if not given:
            raise InputError("tokenize() got an empty list; give at least one text.")
        for place, text in enumerate(given):
            if not isinstance(text, str):
                raise InputError(f"tokenize() takes texts, but number {place} is {type(text).__name__}: {text!r:.60}.")
            if not text.strip():
                raise InputError(f"Text number {place} is empty ({text!r:.20}). Leave it out.")
        return self.encode_texts(given)

    @property
    def mask_id(self) -> int:
        """The id that stands for a hidden word."""
        raise ConfigError(f"{type(self).__name__} knows no token that hides a word: train without augment.words.")

    def tokenize_words(self, texts: Sequence[str]) -> list[list[list[int]]]:
        """The tokens of each text, word by word: what word masking hides or deletes together."""
        tokens = self.tokenize(texts)
        return [[[token] for token in row[mask].tolist()] for row, mask in zip(tokens.ids, tokens.mask, strict=True)]

    @property
    def structural_ids(self) -> frozenset[int]:
        """Ids of tokens that an explanation does not leave out, as the others mean nothing without them."""
        return frozenset()

    @abstractmethod
    def encode_texts(self, texts: list[str]) -> Tokens:
        """The tokens of checked texts."""

    @abstractmethod
    def forward(self, tokens: Tokens) -> LocalFeatures:
        """The local features of each text, one per token."""


_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
TOKENIZER_FILES = (*_VOCABULARIES, "sentencepiece.bpe.model")


@registry.register("transformer")
class Transformer(TextEncoder):
    """A pretrained text encoder's last states, special tokens included: MiniLM, BERT, RoBERTa, MPNet, ModernBERT.

    `model` is minilm (from its package), the folder of a Hugging Face model, or a name on the hub. `dim` adds a linear
    projection. A text of more than `max_length` tokens loses the rest. An encoder that is rebuilt from its config gets
    its tokenizer from `load_preprocessing`.
    """

    def __init__(
        self,
        model: str = "minilm",
        dim: PositiveInt | None = None,
        max_length: PositiveInt = 128,
        trainable: Trainable = "all",
        lr_scale: float = 1.0,
        pretrained: bool = True,
        backbone_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(trainable, lr_scale)
        backbone = backbones.load(model, pretrained, backbone_config, _choose)
        self.backbone, self.backbone_config = backbone.module, backbone.config
        config: Any = backbone.module.config
        width = int(config.hidden_size)
        self.projection = xavier_linear(width, dim) if dim is not None else None
        self.dim = dim or width
        # Positions of the RoBERTa family start after the padding id, which costs them two.
        self.max_length = min(max_length, (getattr(config, "max_position_embeddings", None) or max_length + 2) - 2)
        self.vocab_size, self.pad = int(config.vocab_size), int(getattr(config, "pad_token_id", 0) or 0)
        self.tokenizer: Any = None
        if backbone.folder is not None:
            self.load_preprocessing(backbone.folder)
        self.set_trainable(trainable)

    def encode_texts(self, texts: list[str]) -> Tokens:
        if self.tokenizer is None:
            raise ConfigError("This encoder has no tokenizer yet. Call encoder.load_preprocessing(folder).")
        return Tokens.from_lists(self.call_tokenizer(texts)["input_ids"], self.pad)

    def prepare_text(self, text: str) -> str:
        """A text as the tokenizer takes it."""
        return text

    def call_tokenizer(self, texts: Sequence[str], **options: Any) -> Any:
        """What transformers' tokenizer makes of checked texts: no padding, cut at `max_length`."""
        prepared = [self.prepare_text(text) for text in texts]
        return self.tokenizer(prepared, truncation=True, max_length=self.max_length, padding=False, **options)

    @property
    def mask_id(self) -> int:
        known = getattr(self.tokenizer, "mask_token_id", None)
        return super().mask_id if known is None else int(known)

    def tokenize_words(self, texts: Sequence[str]) -> list[list[list[int]]]:
        self.tokenize(texts)  # checks them
        if not self.tokenizer.is_fast:  # and does not know which tokens make a word
            return super().tokenize_words(texts)
        found = self.call_tokenizer(texts)
        words = []
        for row, ids in enumerate(found["input_ids"]):
            # A special token, which belongs to no word, stays by itself.
            owners = [-place - 1 if word is None else word for place, word in enumerate(found.word_ids(row))]
            pairs = groupby(zip(owners, ids, strict=True), key=lambda pair: pair[0])
            words.append([[token for _, token in pair] for _, pair in pairs])
        return words

    def check_tokens(self, tokens: Tokens) -> Tensor:
        """The ids, padding as this encoder pads; raise for those that it does not know."""
        ids = tokens.ids.masked_fill(~tokens.mask, self.pad)
        if not is_tracing():
            config: Any = getattr(self.backbone.config, "text_config", None) or self.backbone.config
            limit = int(getattr(config, "max_position_embeddings", None) or 2**31)
            if not len(ids) or ids.shape[1] > limit or int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size:
                raise InputError(
                    f"This encoder takes texts of up to {limit} tokens with ids 0 to {self.vocab_size - 1}, got ids of "
                    f"shape {tuple(ids.shape)}. Make them with encoder.tokenize(texts)."
                )
        return ids

    def forward(self, tokens: Tokens) -> LocalFeatures:
        states = self._encode_groups(self.check_tokens(tokens), tokens.mask)
        values = states if self.projection is None else self.projection(states)
        return LocalFeatures(values, tokens.mask).zero_padding()

    def _encode_groups(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, N, width): the last states. Texts of like length go through together: padding costs as much as words."""
        groups = group_by_length(mask)
        if not groups:
            return self._encode(ids, mask)
        parts = [
            F.pad(self._encode(ids[rows, :length], mask[rows, :length]), (0, 0, 0, ids.shape[1] - length))
            for rows, length in groups
        ]
        return torch.cat(parts).index_select(0, torch.cat([rows for rows, _ in groups]).argsort())

    def _encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.backbone(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return states

    def resolved_knobs(self) -> Mapping[str, Any]:
        return {"pretrained": False, "backbone_config": self.backbone_config, "max_length": self.max_length}

    def save_preprocessing(self, folder: Path) -> None:
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    def load_preprocessing(self, folder: Path) -> None:
        # Without them transformers makes a tokenizer that knows no word, and says nothing.
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise SourceError(
                f"No tokenizer in {folder}: expected one of {', '.join(TOKENIZER_FILES)}. Copy the model's there."
            )
        opener = backbones.transformers().AutoTokenizer
        with backbones.report_damage(f"The tokenizer in {folder}"):
            try:
                tokenizer = opener.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            except ImportError as error:
                if "sentencepiece" not in str(error).lower():
                    raise
                missing = "it needs the package sentencepiece. Run: pip install sentencepiece protobuf"
                raise ConfigError(missing) from None
        words = int(tokenizer.vocab_size)  # without added ones, which transformers appends unasked (SigLIP 2)
        if words > self.vocab_size:
            raise SourceError(
                f"The tokenizer in {folder} has {words} tokens, this model {self.vocab_size}. Give its own."
            )
        self.tokenizer = tokenizer

    def preprocessing_bytes(self) -> Iterable[bytes]:
        if self.tokenizer is None:
            return
        if not self.tokenizer.is_fast:  # SigLIP's own: a sentencepiece model
            yield json.dumps({"class": type(self.tokenizer).__name__, "words": self.tokenizer.get_vocab()}).encode()
            if hasattr(self.tokenizer, "sp_model"):
                yield self.tokenizer.sp_model.serialized_model_proto()
            return
        state = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # The last call leaves its padding and truncation here; they are not the tokenizer's own.
        yield json.dumps({**state, "padding": None, "truncation": None}, sort_keys=True).encode()


def _choose(config: Any) -> tuple[Any, Any]:
    config = getattr(config, "text_config", None) or config
    mapping = backbones.transformers().MODEL_MAPPING
    if type(config) not in mapping or config.is_encoder_decoder or not hasattr(config, "vocab_size"):
        raise ConfigError(f"transformer cannot read texts with a {config.model_type!r} model. Give one such as BERT.")
    return mapping[type(config)], config
