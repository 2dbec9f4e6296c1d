"""The words of a text, and which of the encoder's tokens each is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polysem.data.vocabulary import END, START, tokenise
from polysem.encoders import BiGRU, Encoder, TextEncoder, Transformer
from polysem.errors import InputError


@dataclass(frozen=True)
class Word:
    """A word as a person reads it.

    tokens: the places of its tokens. special: a token that is no word, such as the start of a sentence.
    known: False for a word outside the model's vocabulary, which it cannot tell from any other such word.
    """

    text: str
    tokens: tuple[int, ...]
    special: bool = False
    known: bool = True


def words(encoder: Encoder, text: str) -> tuple[Word, ...]:
    """The words of `text`, special tokens included: together they hold every token the encoder makes of it, once."""
    if not isinstance(encoder, TextEncoder):
        raise InputError(f"{type(encoder).__name__} reads no texts.")
    encoder.tokenize([text])  # checks it, and that it can be read
    if isinstance(encoder, Transformer):
        return _of_transformer(encoder, text)
    if isinstance(encoder, BiGRU):
        return _of_vocabulary(encoder, text)
    tokens = encoder.tokenize([text])
    return tuple(Word(f"token {place + 1}", (place,)) for place in range(tokens.ids.shape[1]))


def word_weights(weights: Tensor, found: tuple[Word, ...]) -> Tensor:
    """(..., N) over tokens -> (..., words): a word has what its tokens have together."""
    return torch.stack([weights[..., list(word.tokens)].sum(-1) for word in found], dim=-1)


def _of_transformer(encoder: Transformer, text: str) -> tuple[Word, ...]:
    read = encoder.tokenizer([text], truncation=True, max_length=encoder.max_length, return_offsets_mapping=True)
    ids, spans, owners = read["input_ids"][0], read["offset_mapping"][0], read.word_ids(0)
    unknown = encoder.tokenizer.unk_token_id
    found: list[Word] = []
    for place, (token, (start, end), owner) in enumerate(zip(ids, spans, owners, strict=True)):
        if owner is None:
            found.append(Word(encoder.tokenizer.convert_ids_to_tokens(token), (place,), special=True))
        elif place and owners[place - 1] == owner:
            last = found[-1]
            known = last.known and token != unknown
            found[-1] = Word(last.text + text[start:end].strip(), (*last.tokens, place), known=known)
        else:
            found.append(Word(text[start:end].strip(), (place,), known=token != unknown))
    return tuple(found)


def _of_vocabulary(encoder: BiGRU, text: str) -> tuple[Word, ...]:
    said = [START, *tokenise(text), END][: encoder.max_length]
    return tuple(
        Word(word, (place,), word in (START, END), encoder.vocabulary is None or word in encoder.vocabulary)
        for place, word in enumerate(said)
    )
