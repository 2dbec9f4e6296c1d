"""Which local features each vector of an item was made of: the attention, or the pooling weights, that were used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from polysem.errors import InputError
from polysem.features import LocalFeatures
from polysem.inspection import occlusion
from polysem.models import Model, Tower
from polysem.models.embedding import move
from polysem.models.items import Items, image_items, text_items
from polysem.models.tower import Inputs
from polysem.pooling.base import coefficient_shares
from polysem.progress import Progress

How = Literal["attention", "pooling", "omission"]


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
    common: (N,) the pooling weights behind the global feature that every element contains, where there is one.
    """

    vectors: Tensor
    weights: Tensor
    how: How
    won: Tensor | None = None
    terms: Tensor | None = None
    common: Tensor | None = None

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

    images: a list of paths or PIL pictures; of (tokens, dim) arrays; or `LocalFeatures`, as `encode_images` takes them.
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
            for found in tower_attentions(tower, batch):
                yield found
                done += 1
            if progress is not None:
                progress("attention", done, len(items))

    return attentions()


def tower_attentions(tower: Tower, batch: Inputs) -> list[Attention]:
    """The `Attention` of every item of a batch of a tower's inputs."""
    training = tower.training
    tower.eval()
    try:
        with torch.no_grad():
            return _of_batch(tower, move(batch, next(tower.parameters()).device))
    finally:
        tower.train(training)


def _of_batch(tower: Tower, batch: Inputs) -> list[Attention]:
    encoded, projected = tower.encode(batch)
    prediction = tower.embed(encoded, projected)
    read = projected if tower.reads == "projected" else encoded
    steps, sums = tower.sets.token_shares(prediction), tower.sets.as_sum(read) if tower.sets.k == 1 else None
    won = prediction.attention_steps if _compete(tower) else None
    common = _common(tower, projected)
    found = []
    for row, (vectors, real) in enumerate(zip(prediction.vectors, read.mask, strict=True)):
        how: How = "attention"
        if sums is not None:
            how, weights = "pooling", sums.shares[row, real][None, None]
        elif steps is not None:
            weights = steps[:, row][..., real]
        else:
            how, weights = "omission", occlusion.weights(tower, batch, row, vectors)[None]
        found.append(
            Attention(
                _plain(vectors),
                _plain(weights),
                how,
                None if won is None else _plain(won[:, row].mean(1)[..., real]),
                None if sums is None else _plain(_summing_to(vectors[0], sums.terms[row, real])),
                None if common is None else _plain(common[row, real]),
            )
        )
    return found


def _compete(tower: Tower) -> bool:
    return tower.sets.elements_compete


def _common(tower: Tower, projected: LocalFeatures) -> Tensor | None:
    """(B, N): the weights of the pooling that made the global feature; None where no pooling with weights did."""
    if tower.pool is None or not tower.sets.needs_global:
        return None
    weights = tower.pool.weights(projected)
    return None if weights is None else coefficient_shares(weights)


def _summing_to(vector: Tensor, terms: Tensor) -> Tensor:
    """(N, D) terms scaled as their sum was to become the vector."""
    length = terms.sum(0).norm()
    return terms * (vector.norm() / length) if length > 0 else terms


def _plain(x: Tensor) -> Tensor:
    return x.detach().float().cpu()
