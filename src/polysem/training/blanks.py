"""Tokens that are hidden from a batch, for the model to guess. Which ones is a function of seed, epoch and item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from polysem.data.augmentation import item_rng
from polysem.data.batching import Places
from polysem.encoders import TextEncoder, Tokens
from polysem.errors import InputError
from polysem.features import LocalFeatures
from polysem.models.tower import Inputs

RATE = 0.15
"""Share of the tokens that are hidden."""
_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Blanks:
    """images, texts: (B, N) bool, the tokens that are hidden. regions: (B, N, F), the features of each image's tokens.
    words: (B, N), the number of each text's tokens among the words that occur. replaced: hidden words are no longer in
    the texts that are fed: a mask stands in their place."""

    images: Tensor
    regions: Tensor
    texts: Tensor
    words: Tensor
    replaced: bool

    def among(self, images: Tensor | None, texts: Tensor | None) -> Blanks:
        """Without tokens that size augmentation drops. images, texts: (B, N), which stay."""
        return replace(
            self,
            images=self.images if images is None else self.images & images,
            texts=self.texts if texts is None else self.texts & texts,
        )

    def to(self, device: torch.device) -> Blanks:
        return replace(
            self,
            images=self.images.to(device),
            regions=self.regions.to(device),
            texts=self.texts.to(device),
            words=self.words.to(device),
        )


class Blanking:
    """Hides tokens of batches. words: the ids of all tokens of the training captions, in ascending order."""

    def __init__(self, encoder: TextEncoder, captions: list[str], seed: int) -> None:
        self.encoder, self.captions, self.seed = encoder, captions, seed
        self.words = torch.unique(torch.cat(list(self._tokens())))

    def _tokens(self) -> Iterator[Tensor]:
        for first in range(0, len(self.captions), _AT_ONCE):
            tokens = self.encoder.tokenize(self.captions[first : first + _AT_ONCE])
            yield tokens.ids[tokens.mask].unique()

    def hide(
        self,
        images: Inputs,
        image_keys: list[str],
        texts: Inputs,
        captions: Places,
        text_keys: list[str],
        epoch: int,
    ) -> tuple[Inputs, Blanks]:
        """The texts as they are to be fed, and what is hidden of both. Images are fed whole: the tower hides."""
        if not isinstance(images, LocalFeatures):
            raise InputError("Only features that stay as they are can be guessed; these are pixels.")
        tokens = self.encoder.tokenize([self.captions[place] for place in captions.tolist()])
        hidden = self.draw(tokens.mask, text_keys, epoch, ends=True)
        # Every word of these captions is among the known ones.
        words = torch.searchsorted(self.words, tokens.ids).clamp(max=len(self.words) - 1)
        replaced = isinstance(texts, Tokens)
        if replaced:
            texts = Tokens(tokens.ids.masked_fill(hidden, self.encoder.mask_id), tokens.mask)
        elif isinstance(texts, LocalFeatures) and not torch.equal(texts.mask, tokens.mask):
            raise InputError(
                "The stored features of these captions are not one for each of their tokens: they were made of other "
                "texts, or with another max_length. Delete the store, or give another --text-features."
            )
        shown = self.draw(images.mask, image_keys, epoch, ends=False)
        return texts, Blanks(shown, images.values, hidden, words, replaced)

    def draw(self, mask: Tensor, keys: list[str], epoch: int, ends: bool) -> Tensor:
        """(B, N) bool: each real token with probability `RATE`, never all of an item. ends: the first and the last,
        which stand for the sentence, are never hidden."""
        hidden = np.zeros(tuple(mask.shape), bool)
        for row, key, own in zip(hidden, keys, mask.numpy(), strict=True):
            places = np.flatnonzero(own)
            places = places[1:-1] if ends else places
            luck = item_rng(self.seed, epoch, f"hide {key}").random(len(places))
            chosen = luck < RATE
            if len(chosen) and not ends and chosen.all():
                chosen[luck.argmax()] = False
            row[places[chosen]] = True
        return torch.from_numpy(hidden)
