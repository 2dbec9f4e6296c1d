"""What a text encoder is: sentences to tokens, tokens to local features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polysem.encoders.base import Encoder, Kind, Takes
from polysem.errors import ConfigError, InputError
from polysem.features import LocalFeatures
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
            raise InputError(f"Tokens.ids must be a long (texts, tokens) tensor, got {ids.dtype} {tuple(ids.shape)}.")
        if mask.shape != ids.shape or mask.dtype != torch.bool:
            raise InputError(
                f"Tokens.mask must be bool of shape {tuple(ids.shape)} (True = real token), "
                f"got {mask.dtype} of shape {tuple(mask.shape)}."
            )
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

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """The tokens of each text, padded to the longest. A text of more than `max_length` tokens loses the rest."""
        return self.encode_texts(checked(texts))

    @property
    def mask_id(self) -> int:
        """The id that stands for a hidden word."""
        raise ConfigError(f"{type(self).__name__} knows no token that hides a word: train without augment.words.")

    def tokenize_words(self, texts: Sequence[str]) -> list[list[list[int]]]:
        """The tokens of each text, word by word: what word masking hides or deletes together."""
        tokens = self.tokenize(texts)
        return [[[token] for token in row[mask].tolist()] for row, mask in zip(tokens.ids, tokens.mask, strict=True)]

    @abstractmethod
    def encode_texts(self, texts: list[str]) -> Tokens:
        """The tokens of checked texts."""

    @abstractmethod
    def forward(self, tokens: Tokens) -> LocalFeatures:
        """The local features of each text, one per token."""


def checked(texts: Sequence[str]) -> list[str]:
    """The texts as a list, or an error that names the one that is none."""
    if isinstance(texts, str):
        raise InputError("tokenize() takes a list of texts, got a single one. Write tokenize([text]).")
    given = list(texts)
    if not given:
        raise InputError("tokenize() got an empty list; give at least one text.")
    for place, text in enumerate(given):
        if not isinstance(text, str):
            raise InputError(f"tokenize() takes texts, but number {place} is {type(text).__name__}: {text!r:.60}.")
        if not text.strip():
            raise InputError(f"Text number {place} is empty ({text!r:.20}). Leave it out: nothing can be said of it.")
    return given
