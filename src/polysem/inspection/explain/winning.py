"""Which dimensions made two single vectors close, and which tokens supplied them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polysem.inspection.attention import Attention
from polysem.inspection.explain.explanation import Winning
from polysem.similarity import Similarity

HALF = 0.5
"""Of all that speaks for the match: what the winning dimensions hold together."""


def winning(
    similarity: Similarity, image: Attention, text: Attention, names: Sequence[str] | None = None
) -> Winning | None:
    """None unless both vectors are sums over tokens and their closeness is a sum over dimensions.

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
    speaking = shares[order].clamp(min=0)
    count = int((speaking.cumsum(0) < HALF * speaking.sum()).sum()) + 1
    chosen = order[:count]
    # A token's part in a dimension is its term there, times what the other side has to say in it.
    of_image = _prepared_terms(image, x) * y
    of_text = _prepared_terms(text, y) * x
    image_tokens, text_tokens = of_image[:, chosen].argmax(0), of_text[:, chosen].argmax(0)
    return Winning(
        chosen,
        shares[chosen].float(),
        image_tokens,
        text_tokens,
        _shares(image_tokens, len(of_image)),
        _shares(text_tokens, len(of_text)),
        of_image.sum(1).float(),
        of_text.sum(1).float(),
        () if names is None else tuple(names[place] for place in chosen.tolist()),
    )


def _prepared_terms(side: Attention, prepared: Tensor) -> Tensor:
    """(N, D): the terms, scaled as the similarity scales the vector."""
    terms, length = side.terms.double(), side.vectors.double().norm()  # type: ignore[union-attr]
    return terms * (prepared.norm() / length) if length > 0 else terms


def _shares(winners: Tensor, tokens: int) -> Tensor:
    return torch.bincount(winners, minlength=tokens) / len(winners)
