"""Phrases of captions ("a dog", "a brown dog") as texts to train on, beside the captions themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.nn import functional as F

from polysem.data.collection import Collection
from polysem.data.vocabulary import Vocabulary, tokenise
from polysem.encoders import Encoder, TextEncoder
from polysem.encoders.base import eval_mode
from polysem.encoders.pipeline import windows
from polysem.errors import InputError
from polysem.evaluation.part_queries import PartQuery, make_queries
from polysem.features import LocalFeatures
from polysem.models.embedding import Items, SentenceItems
from polysem.recipes.schema import Phrases

PROMPT = "a {}"
_AT_ONCE = 256


def find_phrases(train: Collection, entry: Phrases | None, vocabulary: Vocabulary | None = None) -> list[PartQuery]:
    """The nouns and noun phrases of the captions, each with the images any of whose captions names it. vocabulary: the
    words that the text encoder knows, where it learns them; phrases of others are left out."""
    if entry is None:
        return []
    found = make_queries(train, "captions", PROMPT, least=entry.least, share=entry.share)
    if vocabulary is not None:
        found = [phrase for phrase in found if all(word in vocabulary for word in tokenise(phrase.text))]
    if not found:
        raise InputError(
            f"phrases: the captions of {train.name} name nothing in at least {entry.least} of its {len(train)} images "
            f"and at most {entry.share:g} of them. They must be English. Lower phrases.least, raise phrases.share, or "
            "leave phrases out."
        )
    return found


def join_phrases(encoder: Encoder, captions: Items[Any], phrases: Sequence[str]) -> Items[Any]:
    """The captions, then the phrases: as sentences, or as features where the captions are."""
    if isinstance(captions, SentenceItems):
        return SentenceItems(encoder, [*captions.values, *phrases])
    return CaptionsAndPhrases(captions, _encode(cast(TextEncoder, encoder), phrases))


class CaptionsAndPhrases(Items[int]):
    """Features of captions, read as they are needed, then those of phrases, which are in memory."""

    def __init__(self, captions: Items[Any], phrases: LocalFeatures) -> None:
        super().__init__(range(len(captions) + len(phrases)))
        self.captions, self.phrases = captions, phrases

    def collate(self, items: list[int]) -> LocalFeatures:
        count = len(self.captions)
        order = sorted(range(len(items)), key=lambda place: items[place] >= count)  # captions first
        own, extra = [row for row in items if row < count], [row - count for row in items if row >= count]
        parts = [cast(LocalFeatures, self.captions.batch(own))] if own else []
        if extra:
            summary = None if self.phrases.summary is None else self.phrases.summary[extra]
            parts.append(LocalFeatures(self.phrases.values[extra], self.phrases.mask[extra], summary))
        return _concatenate(parts, torch.tensor(order).argsort())


def _encode(encoder: TextEncoder, phrases: Sequence[str]) -> LocalFeatures:
    with torch.no_grad(), eval_mode(encoder):
        device = next((tensor.device for tensor in encoder.parameters()), torch.device("cpu"))
        made = [
            encoder(encoder.tokenize([phrases[row] for row in rows]).to(device)).to("cpu")
            for rows in windows(range(len(phrases)), _AT_ONCE)
        ]
    return _concatenate(made, torch.arange(len(phrases)))


def _concatenate(parts: Sequence[LocalFeatures], order: torch.Tensor) -> LocalFeatures:
    """One batch, padded to the longest, in this order."""
    longest = max(part.values.shape[1] for part in parts)
    values = torch.cat([F.pad(part.values, (0, 0, 0, longest - part.values.shape[1])) for part in parts])
    mask = torch.cat([F.pad(part.mask, (0, longest - part.mask.shape[1])) for part in parts])
    summaries = [part.summary for part in parts if part.summary is not None]
    return LocalFeatures(values[order], mask[order], torch.cat(summaries)[order] if summaries else None)
