"""A score taken apart: the share of every pair of elements, which together are the score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polysem.errors import InputError, kind
from polysem.similarity import Similarity


@dataclass(frozen=True, eq=False)
class Contributions:
    """The score of a set of K vectors against one of L.

    matrix: (K, L) each pair's share; the shares sum to the score. A pair that decides nothing has a share near 0.
    closeness: (K, L) how close the two elements are by themselves: their cosine, unless the similarity says otherwise.
    score: the score, as the similarity gives it.
    """

    matrix: Tensor
    closeness: Tensor
    score: float

    @property
    def rows(self) -> Tensor:
        """(K,): what each element of the first set contributes in all."""
        return self.matrix.sum(1)

    @property
    def columns(self) -> Tensor:
        """(L,): what each element of the second set contributes in all."""
        return self.matrix.sum(0)

    @property
    def turned(self) -> Contributions:
        """The same seen from the second set: (L, K)."""
        return Contributions(self.matrix.t(), self.closeness.t(), self.score)


@torch.no_grad()
def contributions(similarity: Similarity, first: Tensor, second: Tensor) -> Contributions:
    """The score of two sets, (K, D) and (L, D), taken apart. Either may be the image's."""
    for given in (first, second):
        if not isinstance(given, Tensor) or given.ndim != 2 or not given.is_floating_point():
            raise InputError(f"contributions() takes two sets, (elements, dim) tensors; got {kind(given)}.")
    score = similarity.scores(first[None], second[None])[0, 0]
    # In double precision, so that the shares sum to the score to its last digit.
    x, y = similarity.prepare(first.double()), similarity.prepare(second.double())
    matrix = similarity.contributions(first.double(), second.double())
    return Contributions(matrix.float(), similarity.closeness(x, y.t()).float(), float(score))
