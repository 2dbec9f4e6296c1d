"""A score taken apart: what each pair of elements, each dimension and each token adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polysem.errors import InputError, kind
from polysem.inspection.attention import Attention
from polysem.similarity import Similarity

_WINNING_SHARE = 0.5
"""Of all positive products: what the winning dimensions hold together."""


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
    def transposed(self) -> Contributions:
        """The same seen from the second set: (L, K)."""
        return Contributions(self.matrix.t(), self.closeness.t(), self.score)


@torch.no_grad()
def decompose_score(similarity: Similarity, first: Tensor, second: Tensor) -> Contributions:
    """The score of two sets, (K, D) and (L, D), split over pairs of elements. Either may be the image's.

    Example:
        >>> import torch
        >>> from polysem import similarity
        >>> result = decompose_score(similarity.build("mil"), torch.eye(3)[:2], torch.eye(3)[:1])
        >>> result.score, result.matrix.tolist()
        (1.0, [[1.0], [0.0]])
    """
    for vectors in (first, second):
        if not isinstance(vectors, Tensor) or vectors.ndim != 2 or not vectors.is_floating_point():
            raise InputError(f"decompose_score() takes two sets, (elements, dim) tensors; got {kind(vectors)}.")
    score = similarity.scores(first[None], second[None])[0, 0]
    # In double precision, so that the shares sum to the score to its last digit.
    x, y = similarity.prepare(first.double()), similarity.prepare(second.double())
    matrix = similarity.contributions(first.double(), second.double())
    return Contributions(matrix.float(), similarity.closeness(x, y.t()).float(), float(score))


@dataclass(frozen=True, eq=False)
class WinningDimensions:
    """The dimensions that made two single vectors close, and the tokens that supplied them.

    dimensions: (J,) the fewest that hold half of the sum of all positive products, the strongest first.
    shares: (J,) what each adds to the closeness.
    image_tokens, text_tokens: (J,) the token that supplies most of it, on either side.
    image_supply, text_supply: (N,), (M,) in which share of these dimensions the token supplies the most; sums to 1.
    image_parts, text_parts: (N,), (M,) what each token adds to the closeness over all dimensions; sums to it.
    names: what the dimensions stand for, where they are classes.
    """

    dimensions: Tensor
    shares: Tensor
    image_tokens: Tensor
    text_tokens: Tensor
    image_supply: Tensor
    text_supply: Tensor
    image_parts: Tensor
    text_parts: Tensor
    names: tuple[str, ...] = ()


def find_winning_dimensions(
    similarity: Similarity, image: Attention, text: Attention, names: Sequence[str] | None = None
) -> WinningDimensions | None:
    """None unless both vectors are sums over tokens and their closeness is a sum over dimensions.

    Args:
        names: what the dimensions stand for, if that is known.
    """
    if image.terms is None or text.terms is None:
        return None
    x, y = (similarity.prepare(side.vectors.double())[0] for side in (image, text))
    shares = x * y
    with torch.no_grad():
        closeness = similarity.closeness(x[None], y[:, None])[0, 0]
    if not torch.isclose(closeness.double(), shares.sum(), atol=1e-6):
        return None  # a distance, say
    order = shares.argsort(descending=True)
    positive = shares[order].clamp(min=0)
    count = int((positive.cumsum(0) < _WINNING_SHARE * positive.sum()).sum()) + 1
    chosen = order[:count]
    # A token's part in a dimension is its term there, times the other side's value in it.
    parts = _prepare_terms(image, x) * y, _prepare_terms(text, y) * x
    image_tokens, text_tokens = (part[:, chosen].argmax(0) for part in parts)
    return WinningDimensions(
        chosen,
        shares[chosen].float(),
        image_tokens,
        text_tokens,
        torch.bincount(image_tokens, minlength=len(parts[0])) / count,
        torch.bincount(text_tokens, minlength=len(parts[1])) / count,
        parts[0].sum(1).float(),
        parts[1].sum(1).float(),
        () if names is None else tuple(names[dimension] for dimension in chosen.tolist()),
    )


def _prepare_terms(side: Attention, prepared: Tensor) -> Tensor:
    """(N, D): the terms, scaled as the similarity scales the vector."""
    terms, length = side.terms.double(), side.vectors.double().norm()  # type: ignore[union-attr]
    return terms * (prepared.norm() / length) if length > 0 else terms
