"""Which local features each vector of an item was made of: attention, pooling weights, or importance by occlusion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from polysem._deprecated import renamed_attribute
from polysem.encoders import DualImage, TextEncoder, Tokens
from polysem.encoders.base import eval_mode
from polysem.errors import InputError
from polysem.features import LocalFeatures
from polysem.models import Model, Tower
from polysem.models.embedding import Items, image_items, text_items
from polysem.models.tower import Inputs
from polysem.pooling.base import coefficient_shares
from polysem.progress import Progress
from polysem.sets import SetSum, WeightedTokens

WeightKind = Literal["attention", "pooling", "omission"]
_OCCLUDED_AT_ONCE = 32
_BLOCKS_ACROSS = (4, 8)
"""Of a picture that is hidden part by part: how many parts across and down, each a pass through the encoder."""
_OCCLUSION_FLOPS = 1e12
"""What the passes may cost together before there are fewer parts: seconds on a few cores."""


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
      omission   no weights exist (tokens change each other first): how far the vector turns when the token is left out.
                 A patch of a dual encoder is left out by the mean colour in its place
    won: (T, K, N) where slots compete for tokens: the share of the token that the slot won; sums to 1 over slots.
    terms: (N, D) where the only vector is a sum over tokens: what each adds to it, scaled so that they sum to it.
    global_weights: (N,) the pooling weights behind the global feature that every element contains, where there is one.
    without: (N, K, D) of omission, or where asked for: the vectors that are left without the token.
    sums: the vectors as exact sums over the tokens, of one item, where they are such sums.
    hidden_together: how many patches a side were hidden at a time, where a picture has many: they share their weight.
    """

    vectors: Tensor
    weights: Tensor
    how: WeightKind
    won: Tensor | None = None
    terms: Tensor | None = None
    global_weights: Tensor | None = None
    without: Tensor | None = None
    hidden_together: int = 1
    sums: SetSum | None = None
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
    model: Model, images: Any, *, batch_size: int = 32, occlude: bool = False, progress: Progress | None = None
) -> Iterator[Attention]:
    """The `Attention` of each image, in the order given. No more than a batch is in memory.

    Args:
        images: a list of paths, PIL images or (tokens, dim) arrays; or `LocalFeatures`, as `encode_images` takes them.
        occlude: leave out each token of vectors that are no sums over tokens, to know what is left `without` it.
        progress: called with the stage "attention", the number of items done and their total.
    """
    return _attentions(model.image, image_items(model.image.encoder, images), batch_size, progress, occlude)


def text_attentions(
    model: Model, texts: Any, *, batch_size: int = 64, progress: Progress | None = None
) -> Iterator[Attention]:
    """The `Attention` of each text, in the order given. texts: sentences, `Tokens`, or `LocalFeatures`."""
    return _attentions(model.text, text_items(model.text.encoder, texts, by_length=False), batch_size, progress)


def _attentions(
    tower: Tower, items: Items[Any], batch_size: int, progress: Progress | None, occlude: bool = False
) -> Iterator[Attention]:
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    # Variants that read padding as the released code does would show the padding of a chance batch.
    batches = items.batches(1 if tower.reads_padding else batch_size)

    def attentions() -> Iterator[Attention]:
        done = 0
        for batch in batches:
            for attention in tower_attentions(tower, batch, occlude):
                yield attention
                done += 1
            if progress is not None:
                progress("attention", done, len(items))

    return attentions()


@torch.no_grad()
def tower_attentions(tower: Tower, batch: Inputs, occlude: bool = False) -> list[Attention]:
    """The `Attention` of every item of a batch of a tower's inputs.

    occlude: leave out each token of vectors that are no sums over tokens, to know what is left `without` it.
    """
    with eval_mode(tower):
        return _batch_attentions(tower, batch.to(next(tower.parameters()).device), occlude)


def _batch_attentions(tower: Tower, batch: Inputs, occlude: bool) -> list[Attention]:
    encoded, projected = tower.encode(batch)
    prediction = tower.embed(encoded, projected)
    read = projected if tower.reads == "projected" else encoded
    steps, sums = tower.sets.token_shares(prediction), tower.sets.as_sum(read) if tower.sets.k == 1 else None
    won = prediction.attention_steps if tower.sets.elements_compete else None
    global_feature = None
    if tower.sets.needs_global:
        global_feature = projected.summary if tower.pool is None else tower.pool(projected)
    exact = tower.sets.as_set_sum(read, global_feature)
    pooling = tower.pool.weights(projected) if tower.pool is not None and tower.sets.needs_global else None
    shares = None if pooling is None else coefficient_shares(pooling)
    attentions = []
    for row, (vectors, real) in enumerate(zip(prediction.vectors, read.mask, strict=True)):
        how: WeightKind = "attention"
        terms, without, together = None, None, 1
        if sums is not None:
            how, weights, terms = "pooling", sums.shares[row, real][None, None], sums.terms[row, real]
            length = terms.sum(0).norm()
            terms = terms * (vectors[0].norm() / length) if length > 0 else terms  # as their sum became the vector
        elif steps is not None:
            weights = steps[:, row][..., real]
            if occlude and exact is None:
                without, _, together = _occlude(tower, batch, row, vectors)
        else:
            how, (without, counted, together) = "omission", _occlude(tower, batch, row, vectors)
            weights = occlusion_weights(vectors, without, counted)[None]
        own = None if won is None else won[:, row].mean(1)[..., real]
        whole = None if shares is None else shares[row, real]
        own, terms, whole, without = map(_detach, (own, terms, whole, without))
        item = None if exact is None else _pick_sum(exact, row, real)
        attentions.append(
            Attention(_detach(vectors), _detach(weights), how, own, terms, whole, without, together, item)
        )
    return attentions


def _pick_sum(sums: SetSum, row: int, real: Tensor) -> SetSum:
    """The sums of one item of a batch, without its padding."""
    parts = [
        WeightedTokens(_detach(part.coefficients[row : row + 1, :, real]), _detach(part.values[row : row + 1, real]))
        for part in sums.parts
    ]
    return SetSum(tuple(parts), _detach(sums.remainder[row : row + 1]))


def _detach(x: Tensor | None) -> Any:
    return None if x is None else x.detach().float().cpu()


def occlusion_weights(vectors: Tensor, without: Tensor, counted: Tensor) -> Tensor:
    """(K, N) importance of each token by occlusion: 1 - cosine of each vector to what it is without the token, scaled
    to sum to 1.

    Args:
        vectors: (K, D), the item's set.
        without: (N, K, D), the set without each of its tokens.
        counted: (N,) bool, the tokens that were left out at all; the others weigh nothing.
    """
    change = (1 - F.cosine_similarity(without, vectors, -1)).clamp(min=0).t() * counted
    total = change.sum(1, keepdim=True)
    even = counted.to(change) / counted.sum().clamp(min=1)
    # Less is rounding: a vector that depends on none of its tokens.
    return torch.where(total > 1e-9, change / torch.where(total > 1e-9, total, 1.0), even)


def _occlude(tower: Tower, batch: Inputs, row: int, vectors: Tensor) -> tuple[Tensor, Tensor, int]:
    """What an item's vectors (K, D) are without each of its tokens, (N, K, D); which of them were left out, (N,); and
    how many patches a side were hidden at a time. batch: the inputs that item number `row` was part of."""
    if isinstance(batch, Tensor) and isinstance(tower.encoder, DualImage):
        return _occlude_patches(tower, batch[row], vectors)
    # Where there are tokens to leave out for the first time: before a GRU has read them all.
    features: Tokens | LocalFeatures
    if isinstance(batch, Tensor):
        features, row = tower.encoder(batch[row : row + 1]), 0
    else:
        features = batch
    real = features.mask[row]
    count, device = int(real.sum()), real.device
    counted = torch.ones(count, dtype=torch.bool, device=device)
    if isinstance(features, Tokens):
        fixed = cast(TextEncoder, tower.encoder).structural_ids
        counted &= torch.tensor([token not in fixed for token in features.ids[row, real].tolist()], device=device)
    without = vectors.expand(count, -1, -1).clone()
    if count == 1:
        return without, torch.ones_like(counted), 1
    for left_out in counted.nonzero().flatten().split(_OCCLUDED_AT_ONCE):
        copies: Inputs
        if isinstance(features, Tokens):
            ids = features.ids[row, real].tolist()
            copies = Tokens.from_lists([ids[:i] + ids[i + 1 :] for i in left_out.tolist()]).to(device)
        else:
            values = features.values[row, real].expand(len(left_out), -1, -1)
            keep = torch.arange(count, device=device) != left_out[:, None]
            summary = None if features.summary is None else features.summary[row].expand(len(left_out), -1)
            copies = LocalFeatures(values, keep, summary)
        without[left_out] = tower(copies).vectors
    return without, counted, 1


def _occlude_patches(tower: Tower, pixels: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor, int]:
    """`_occlude` of a picture (3, H, W) whose vector is not made of its tokens alone: patches are hidden in it."""
    encoder = cast(DualImage, tower.encoder)
    rows, columns = encoder.patch_grid(pixels)
    cost = 2 * sum(parameter.numel() for parameter in encoder.parameters()) * rows * columns
    fewest, most = _BLOCKS_ACROSS
    together = -(-max(rows, columns) // min(most, max(fewest, int((_OCCLUSION_FLOPS / cost) ** 0.5))))
    corners = [(y, x) for y in range(0, rows, together) for x in range(0, columns, together)]
    high, wide = pixels.shape[1] / rows, pixels.shape[2] / columns
    without = vectors.expand(rows * columns, -1, -1).clone().unflatten(0, (rows, columns))
    for first in range(0, len(corners), _OCCLUDED_AT_ONCE):
        some = corners[first : first + _OCCLUDED_AT_ONCE]
        copies = pixels.repeat(len(some), 1, 1, 1)
        for copy, (y, x) in zip(copies, some, strict=True):
            bottom, right = round((y + together) * high), round((x + together) * wide)
            copy[:, round(y * high) : bottom, round(x * wide) : right] = 0.0  # the mean colour
        for (y, x), left in zip(some, tower(copies).vectors, strict=True):
            without[y : y + together, x : x + together] = left
    counted = torch.ones(rows * columns, dtype=torch.bool, device=pixels.device)
    without = without.flatten(0, 1)
    if encoder.has_cls:  # which sees the whole picture
        without, counted = torch.cat([vectors[None], without]), torch.cat([~counted[:1], counted])
    return without, counted, together
