"""Which local features each vector of an item was made of: attention, pooling weights, or importance by occlusion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from polysem._deprecated import renamed_attribute
from polysem.encoders import Tokens
from polysem.encoders.base import eval_mode
from polysem.errors import InputError
from polysem.features import LocalFeatures
from polysem.models import Model, Tower
from polysem.models.embedding import Items, image_items, text_items
from polysem.models.tower import Inputs
from polysem.pooling.base import coefficient_shares
from polysem.progress import Progress

WeightKind = Literal["attention", "pooling", "omission"]
_OCCLUDED_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class Attention:
    """What one item's K vectors took from its N local features, over T iterations (1 where nothing iterates).

    vectors: (K, D) the item's embedding, as `encode_images` or `encode_texts` gives it.
    weights: (T, K, N) the share of each token in what an element takes in; every row sums to 1.
    how: what the weights are.
      attention  the attention by which the element read the tokens, in the forward pass that made `vectors`; the mean
                 over heads
      pooling    a single vector is a weighted sum, with weights of its own for each dimension: the share of the
                 coefficients that fell on the token, mean over dimensions
      omission   no weights exist (tokens change each other first): how far the vector turns when the token is left out
    won: (T, K, N) where slots compete for tokens: the share of the token that the slot won; sums to 1 over slots.
    terms: (N, D) where the only vector is a sum over tokens: what each adds to it, scaled so that they sum to it.
    global_weights: (N,) the pooling weights behind the global feature that every element contains, where there is one.
    """

    vectors: Tensor
    weights: Tensor
    how: WeightKind
    won: Tensor | None = None
    terms: Tensor | None = None
    global_weights: Tensor | None = None
    common = renamed_attribute("common", "global_weights")

    @property
    def last(self) -> Tensor:
        """(K, N): the weights of the last iteration."""
        return self.weights[-1]

    @property
    def wins(self) -> Tensor | None:
        """(N,): the share of the vector's dimensions that the token supplies more of than any other."""
        if self.terms is None:
            return None
        winner = self.terms.abs().argmax(0)
        return torch.bincount(winner, minlength=len(self.terms)).to(self.terms.dtype) / len(winner)


def image_attentions(
    model: Model, images: Any, *, batch_size: int = 32, progress: Progress | None = None
) -> Iterator[Attention]:
    """The `Attention` of each image, in the order given. No more than a batch is in memory.

    Args:
        images: a list of paths, PIL images or (tokens, dim) arrays; or `LocalFeatures`, as `encode_images` takes them.
        progress: called with the stage "attention", the number of items done and their total.
    """
    return _attentions(model.image, image_items(model.image.encoder, images), batch_size, progress)


def text_attentions(
    model: Model, texts: Any, *, batch_size: int = 64, progress: Progress | None = None
) -> Iterator[Attention]:
    """The `Attention` of each text, in the order given. texts: sentences, `Tokens`, or `LocalFeatures`."""
    return _attentions(model.text, text_items(model.text.encoder, texts, by_length=False), batch_size, progress)


def _attentions(tower: Tower, items: Items[Any], batch_size: int, progress: Progress | None) -> Iterator[Attention]:
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    # Variants that read padding as the released code does would show the padding of a chance batch.
    batches = items.batches(1 if tower.reads_padding else batch_size)

    def attentions() -> Iterator[Attention]:
        done = 0
        for batch in batches:
            for attention in tower_attentions(tower, batch):
                yield attention
                done += 1
            if progress is not None:
                progress("attention", done, len(items))

    return attentions()


@torch.no_grad()
def tower_attentions(tower: Tower, batch: Inputs) -> list[Attention]:
    """The `Attention` of every item of a batch of a tower's inputs."""
    with eval_mode(tower):
        return _batch_attentions(tower, batch.to(next(tower.parameters()).device))


def _batch_attentions(tower: Tower, batch: Inputs) -> list[Attention]:
    encoded, projected = tower.encode(batch)
    prediction = tower.embed(encoded, projected)
    read = projected if tower.reads == "projected" else encoded
    steps, sums = tower.sets.token_shares(prediction), tower.sets.as_sum(read) if tower.sets.k == 1 else None
    won = prediction.attention_steps if tower.sets.elements_compete else None
    pooling = tower.pool.weights(projected) if tower.pool is not None and tower.sets.needs_global else None
    shares = None if pooling is None else coefficient_shares(pooling)
    attentions = []
    for row, (vectors, real) in enumerate(zip(prediction.vectors, read.mask, strict=True)):
        how: WeightKind = "attention"
        terms = None
        if sums is not None:
            how, weights, terms = "pooling", sums.shares[row, real][None, None], sums.terms[row, real]
            length = terms.sum(0).norm()
            terms = terms * (vectors[0].norm() / length) if length > 0 else terms  # as their sum became the vector
        elif steps is not None:
            weights = steps[:, row][..., real]
        else:
            how, weights = "omission", occlusion_weights(tower, batch, row, vectors)[None]
        own = None if won is None else won[:, row].mean(1)[..., real]
        whole = None if shares is None else shares[row, real]
        attentions.append(Attention(_detach(vectors), _detach(weights), how, *map(_detach, (own, terms, whole))))
    return attentions


def _detach(x: Tensor | None) -> Any:
    return None if x is None else x.detach().float().cpu()


def occlusion_weights(tower: Tower, batch: Inputs, row: int, vectors: Tensor) -> Tensor:
    """(K, N) importance of each token by occlusion: 1 - cosine of each vector to what it is without the token, scaled
    to sum to 1. batch: the inputs that item number `row`, whose set is `vectors` (K, D), was part of.
    """
    # Where there are tokens to leave out for the first time: before a GRU has read them all.
    features: Tokens | LocalFeatures
    if isinstance(batch, Tensor):
        features, row = tower.encoder(batch[row : row + 1]), 0
    else:
        features = batch
    real, changes = features.mask[row], []
    count, device = int(real.sum()), real.device
    if count == 1:
        return vectors.new_ones(len(vectors), 1)
    for first in range(0, count, _OCCLUDED_AT_ONCE):
        left_out = range(first, min(count, first + _OCCLUDED_AT_ONCE))
        copies: Inputs
        if isinstance(features, Tokens):
            ids = features.ids[row, real].tolist()
            copies = Tokens.from_lists([ids[:i] + ids[i + 1 :] for i in left_out]).to(device)
        else:
            values = features.values[row, real].expand(len(left_out), -1, -1)
            keep = torch.arange(count, device=device) != torch.tensor(left_out, device=device)[:, None]
            summary = None if features.summary is None else features.summary[row].expand(len(left_out), -1)
            copies = LocalFeatures(values, keep, summary)
        changes.append(1 - F.cosine_similarity(tower(copies).vectors, vectors, -1))
    change = torch.cat(changes).clamp(min=0).t()
    total = change.sum(1, keepdim=True)
    return torch.where(total > 0, change / torch.where(total > 0, total, 1.0), 1 / count)
