"""Masked modelling: tokens are masked, and heads predict them. No embedding depends on the heads; they are not saved.

Which tokens are masked is a function of seed, epoch and item, so that a resumed run masks the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from polysem import distributed, objectives
from polysem.data.augmentation import item_rng
from polysem.data.batching import Places
from polysem.data.collection import Collection
from polysem.data.store import FeatureStore
from polysem.encoders import TextEncoder, Tokens
from polysem.encoders.region import xavier_linear
from polysem.errors import InputError
from polysem.features import LocalFeatures
from polysem.models import Model
from polysem.models.tower import Inputs, TokenMask
from polysem.objectives import Loss
from polysem.objectives.label_objectives import region_terms, word_terms
from polysem.recipes import Recipe

RATE = 0.15
"""Share of the tokens that are masked."""
_TOKENIZED_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class MaskedTokens:
    """What is masked of a batch.

    Args:
        images, texts: (B, N) bool, the masked tokens.
        regions: (B, N, F), the features of each image's tokens.
        words: (B, N), the index of each text's tokens among the words that occur.
        replaced: the texts of the batch hold mask tokens already; else the tower masks them.
    """

    images: Tensor
    regions: Tensor
    texts: Tensor
    words: Tensor
    replaced: bool

    def restrict(self, images: Tensor | None, texts: Tensor | None) -> MaskedTokens:
        """Without tokens that size augmentation drops. images, texts: (B, N), which stay."""
        stay = {"images": images, "texts": texts}
        return replace(self, **{name: getattr(self, name) & mask for name, mask in stay.items() if mask is not None})

    def to(self, device: torch.device) -> MaskedTokens:
        """The same on a device."""
        tensors = {name: getattr(self, name).to(device) for name in ("images", "regions", "texts", "words")}
        return replace(self, **tensors)


class TokenMasker:
    """Masks tokens of batches. words: the ids of all tokens of the training captions, in ascending order."""

    def __init__(self, encoder: TextEncoder, captions: list[str], seed: int) -> None:
        self.encoder, self.captions, self.seed = encoder, captions, seed
        parts = []
        for first in range(0, len(captions), _TOKENIZED_AT_ONCE):
            tokens = encoder.tokenize(captions[first : first + _TOKENIZED_AT_ONCE])
            parts.append(tokens.ids[tokens.mask].unique())
        self.words = torch.unique(torch.cat(parts))

    def mask(
        self, images: Inputs, image_keys: list[str], texts: Inputs, captions: Places, text_keys: list[str], epoch: int
    ) -> tuple[Inputs, MaskedTokens]:
        """The texts as the tower gets them, and what is masked of both sides. Images stay whole: the tower masks them.
        captions: the position of each text among the training captions."""
        if not isinstance(images, LocalFeatures):
            raise InputError("Only features that stay as they are can be predicted; these are pixels.")
        tokens = self.encoder.tokenize([self.captions[caption] for caption in captions.tolist()])
        masked = self.draw(tokens.mask, text_keys, epoch, protect_ends=True)
        # Every word of these captions is among the known ones.
        words = torch.searchsorted(self.words, tokens.ids).clamp(max=len(self.words) - 1)
        replaced = isinstance(texts, Tokens)
        if replaced:
            texts = Tokens(tokens.ids.masked_fill(masked, self.encoder.mask_id), tokens.mask)
        elif isinstance(texts, LocalFeatures) and not torch.equal(texts.mask, tokens.mask):
            raise InputError(
                "The stored features of these captions are not one for each of their tokens: other texts, or another "
                "max_length. Delete the store, or give another --text-features."
            )
        masked_regions = self.draw(images.mask, image_keys, epoch, protect_ends=False)
        return texts, MaskedTokens(masked_regions, images.values, masked, words, replaced)

    def draw(self, mask: Tensor, keys: list[str], epoch: int, protect_ends: bool) -> Tensor:
        """(B, N) bool: each real token with probability `RATE`, never all of an item. protect_ends: the first and the
        last, which stand for the sentence, are never masked."""
        masked = np.zeros(tuple(mask.shape), bool)
        for row, key, real in zip(masked, keys, mask.numpy(), strict=True):
            positions = np.flatnonzero(real)
            positions = positions[1:-1] if protect_ends else positions
            uniform = item_rng(self.seed, epoch, f"hide {key}").random(len(positions))
            chosen = uniform < RATE
            if len(chosen) and not protect_ends and chosen.all():
                chosen[uniform.argmax()] = False
            row[positions[chosen]] = True
        return torch.from_numpy(masked)


class MaskedModellingHeads(nn.Module):
    """From the states of masked tokens: which word stood there, and which of the batch's masked regions.

    variant "official": regions are asked for and not masked, and words predicted with a softmax of sigmoids.
    """

    def __init__(self, widths: tuple[int, int], words: int, region_dim: int, variant: str = "paper") -> None:
        """widths: of the states of images and of texts. words: how many there are to choose from."""
        super().__init__()
        self.variant = variant
        self.image_mask, self.text_mask = (nn.Parameter(0.02 * torch.randn(width)) for width in widths)
        self.words, self.regions = xavier_linear(widths[1], words), xavier_linear(widths[0], region_dim)

    def tower_masks(self, masked: MaskedTokens | None) -> tuple[TokenMask | None, TokenMask | None]:
        """What the towers mask. A word that was replaced before its encoder needs no more masking."""
        if masked is None:
            return None, None
        images = None if self.variant == "official" else TokenMask(masked.images, self.image_mask)
        return images, None if masked.replaced else TokenMask(masked.texts, self.text_mask)

    def forward(self, images: Tensor, texts: Tensor, masked: MaskedTokens) -> Loss:
        """images, texts: (B, N, D), the states of this process's tokens."""
        words = word_terms(self.words(texts[masked.texts]), masked.words[masked.texts], self.variant)
        regions = region_terms(self.regions(images[masked.images]), masked.regions[masked.images].to(images))
        parts = {"words": _global_mean(words), "regions": _global_mean(regions)}
        return Loss(parts["words"] + parts["regions"], parts)


def _global_mean(terms: Tensor) -> Tensor:
    """The share of this process in the mean over all processes; 0 where nothing was masked."""
    count = distributed.all_reduce(torch.tensor(float(len(terms)), device=terms.device))
    return terms.sum() / count.clamp(min=1)


def build_masked_modelling(
    recipe: Recipe, model: Model, train: Collection, images: FeatureStore | None
) -> tuple[TokenMasker | None, MaskedModellingHeads | None]:
    """What masks tokens, and the heads that predict them; None for both where the objective gives it no weight.
    images: the store of the images' features, where their encoder is frozen."""
    objective = objectives.build(**recipe.objective)
    if not getattr(objective, "masked_weight", 0.0):
        return None, None
    masker = TokenMasker(cast(TextEncoder, model.text.encoder), train.captions, recipe.training.seed)
    features = int(images.dim if images is not None else model.image.encoder.config["input_dim"])
    widths = int(model.image.sets.input_dim or 0), int(model.text.sets.input_dim or 0)
    torch.manual_seed(recipe.training.seed)
    heads = MaskedModellingHeads(widths, len(masker.words), features, str(objective.config.get("variant", "paper")))
    return masker, heads.to(model.device)
