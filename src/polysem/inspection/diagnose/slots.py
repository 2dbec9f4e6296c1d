"""Which elements do the work: how often each wins, and how much of the score's gradient would reach it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polysem import masked_ops
from polysem.similarity import Similarity

_BATCH = 2048


@dataclass(frozen=True)
class Usage:
    """The elements of one side, in their order; each list sums to 1 but the last.

    supervision: the share of the score's gradient that matching pairs send to the element, which is what training
    through this similarity can teach it. wins: how often the element is in the pair's closest two. constancy: |mean of
    the element over all items|², the share of it that says the same of everything.
    effective: exp(entropy of the supervision), the number of elements that are in use.
    """

    supervision: tuple[float, ...]
    wins: tuple[float, ...]
    constancy: tuple[float, ...]
    effective: float


def usage(
    images: Tensor, texts: Tensor, owners: npt.NDArray[np.integer], similarity: Similarity
) -> tuple[Usage, Usage]:
    """Of images and of texts, over all matching pairs. owners: (T,) the image of each text."""
    k, size = images.shape[1], texts.shape[1]
    pull, wins = torch.zeros(k, size, dtype=torch.float64), torch.zeros(k, size, dtype=torch.float64)
    rows = torch.as_tensor(owners, dtype=torch.long)
    for first in range(0, len(texts), _BATCH):
        own, other = images[rows[first : first + _BATCH]], texts[first : first + _BATCH]
        pull += _pull(own, other, similarity)
        cosines = masked_ops.unit(own.float()) @ masked_ops.unit(other.float()).transpose(1, 2)
        wins += torch.bincount(cosines.flatten(1).argmax(1), minlength=k * size).view(k, size)
    return (
        _usage(pull.sum(1), wins.sum(1), images),
        _usage(pull.sum(0), wins.sum(0), texts),
    )


def _pull(own: Tensor, other: Tensor, similarity: Similarity) -> Tensor:
    """(K, L) how much the scores of these pairs change with the closeness of each pair of elements."""
    with torch.no_grad():
        a, b = similarity.prepare(own.float()), similarity.prepare(other.float())
        closeness = similarity.closeness(a, b.transpose(1, 2)).permute(1, 2, 0)[None]
    with torch.enable_grad():
        given = closeness.clone().requires_grad_()
        (slope,) = torch.autograd.grad(similarity.reduce(given * 1.0).sum(), given)
    return slope[0].abs().sum(-1).double()


def _usage(pull: Tensor, wins: Tensor, vectors: Tensor) -> Usage:
    shares = pull / pull.sum().clamp(min=1e-300)
    entropy = -sum(share * math.log(share) for share in shares.tolist() if share > 0)
    constancy = masked_ops.unit(vectors.float()).mean(0).square().sum(-1)
    return Usage(
        tuple(shares.tolist()), tuple((wins / wins.sum()).tolist()), tuple(constancy.tolist()), math.exp(entropy)
    )
