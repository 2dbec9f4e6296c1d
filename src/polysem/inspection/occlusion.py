"""What a token matters where no weight tells: how far each vector turns when the token is left out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from polysem.encoders import Tokens
from polysem.features import LocalFeatures
from polysem.models import Tower
from polysem.models.tower import Inputs

_AT_ONCE = 32


def weights(tower: Tower, batch: Inputs, row: int, vectors: Tensor) -> Tensor:
    """(K, N): for each vector, 1 - cosine to what it is without the token, scaled to sum to 1.

    batch: the inputs that item number `row`, whose set is `vectors` (K, D), was part of.
    """
    tokens = _tokens(tower, batch, row)
    count = tokens.ids.shape[1] if isinstance(tokens, Tokens) else tokens.values.shape[1]
    if count == 1:
        return vectors.new_ones(len(vectors), 1)
    turned = [
        1
        - F.cosine_similarity(tower(_without(tokens, range(first, min(count, first + _AT_ONCE)))).vectors, vectors, -1)
        for first in range(0, count, _AT_ONCE)
    ]
    moved = torch.cat(turned).clamp(min=0).t()
    total = moved.sum(1, keepdim=True)
    return torch.where(total > 0, moved / torch.where(total > 0, total, 1.0), 1 / count)


def _tokens(tower: Tower, batch: Inputs, row: int) -> Tokens | LocalFeatures:
    """The one item, where there are tokens to leave out for the first time: before a GRU has read them all."""
    if isinstance(batch, Tokens):
        return Tokens(batch.ids[row : row + 1, batch.mask[row]], batch.mask[row : row + 1, batch.mask[row]])
    features = batch if isinstance(batch, LocalFeatures) else tower.encoder(batch[row : row + 1])
    if features is not batch:
        row = 0
    real = features.mask[row]
    summary = None if features.summary is None else features.summary[row : row + 1]
    return LocalFeatures(features.values[row : row + 1, real], real[real][None], summary)


def _without(tokens: Tokens | LocalFeatures, places: range) -> Tokens | LocalFeatures:
    """As many copies of the item as there are places, each without the token there."""
    if isinstance(tokens, Tokens):
        row = tokens.ids[0].tolist()
        return Tokens.from_lists([row[:place] + row[place + 1 :] for place in places]).to(tokens.ids.device)
    count, device = len(places), tokens.values.device
    keep = torch.arange(tokens.values.shape[1], device=device) != torch.tensor(list(places), device=device)[:, None]
    summary = None if tokens.summary is None else tokens.summary.expand(count, -1)
    return LocalFeatures(tokens.values.expand(count, -1, -1), keep, summary)
