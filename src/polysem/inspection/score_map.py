"""The score map: what each token of an image adds to its score with one text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from polysem.data.noun_phrases import AUXILIARIES, DETERMINERS, FUNCTION_WORDS, NO_THINGS, PREPOSITIONS, RELATIVES
from polysem.inspection.attention import Attention
from polysem.similarity import Similarity


@dataclass(frozen=True, eq=False)
class ScoreMap:
    """What each of an image's N tokens adds to the score of this very text, and so where in the image the text is.

    how: sum       the vectors are sums over the tokens, and the score is taken apart exactly: `values` and `remainder`
                   sum to it. A token counts by what sets it apart from the mean of the image's tokens
         omission  they are not (an MLP, a transformer): how far the score falls when the token is left out
    values: (N,), negative where a token speaks against the text.
    elements: (K, N) of `sum`: the same by the element of the image's set through which it comes.
    remainder: of `sum`: what has no place. What all tokens have in common, biases, a global feature of another origin.
    """

    how: Literal["sum", "omission"]
    values: Tensor
    elements: Tensor | None = None
    remainder: float | None = None

    @property
    def shown(self) -> Tensor:
        """(N,): what a drawing shows, the values that speak for the text as shares of the largest."""
        positive = self.values.clamp(min=0)
        return positive / positive.max().clamp(min=1e-12)

    def as_dict(self) -> dict[str, Any]:
        elements = None if self.elements is None else self.elements.tolist()
        return {"how": self.how, "values": self.values.tolist(), "elements": elements, "remainder": self.remainder}


@dataclass(frozen=True, eq=False)
class PhraseMap:
    """A phrase of the text ("a dog") asked by itself: its own score with the image, and its score map."""

    phrase: str
    score: float
    map: ScoreMap

    def as_dict(self) -> dict[str, Any]:
        return {"phrase": self.phrase, "score": self.score, **self.map.as_dict()}


MOST_PHRASES = 4
_CUTS = PREPOSITIONS | AUXILIARIES | RELATIVES | frozenset({"but", "it", "there"})


def split_phrases(text: str) -> tuple[str, ...]:
    """The phrases of an English text that name things: it is cut at prepositions, auxiliaries and relatives, before
    articles and other determiners, and at words in -ing behind a noun. Empty where it is one phrase alone.

    Example:
        >>> split_phrases("A dog is running on green grass")
        ('a dog', 'green grass')
        >>> split_phrases("green grass")
        ()
    """
    phrases: list[list[str]] = [[]]
    words = re.findall(r"[\w'-]+|[,.;:!?]", text.lower())
    for word in words:
        ends = word in _CUTS or not word[0].isalnum()
        is_verb = word.endswith("ing") and any(each not in DETERMINERS for each in phrases[-1])
        starts = word in DETERMINERS and any(each not in DETERMINERS for each in phrases[-1])
        if ends or is_verb or starts:
            phrases.append([])
        if not ends and not is_verb:
            phrases[-1].append(word)
    # A word in -ing at the beginning of a phrase is a verb too, unless an article says otherwise.
    named = [each[1:] if each and each[0].endswith("ing") else each for each in phrases]
    named = [each[:-1] if each and each[-1] in ("and", "or") else each for each in named]
    kept = [" ".join(each) for each in named if any(word not in FUNCTION_WORDS | NO_THINGS for word in each)]
    unique = tuple(dict.fromkeys(kept))[:MOST_PHRASES]
    plain = " ".join(word for word in words if word[0].isalnum())
    return () if unique == (plain,) else unique


@torch.no_grad()
def map_score(similarity: Similarity, image: Attention, text: Tensor, located: Tensor) -> ScoreMap | None:
    """The score map of an image for a text's set (L, D). None where neither sums nor omissions of the image are known.

    Args:
        similarity: the model's.
        image: the image's vectors as sums, or what they are without each token.
        located: (N,) bool, tokens with a place in the image: their mean is what all have in common.
    """
    exact = _split_score(similarity, image, text, located) if image.sums is not None else None
    if exact is not None or image.without is None:
        return exact
    score = similarity.scores(image.vectors[None], text[None])[0, 0]
    return ScoreMap("omission", score - similarity.scores(image.without, text[None])[:, 0])


def _split_score(similarity: Similarity, image: Attention, text: Tensor, located: Tensor) -> ScoreMap | None:
    """The exact map; None where closeness is no inner product, but a distance, say."""
    vectors, text = image.vectors.double(), text.double()
    x, y = similarity.prepare(vectors), similarity.prepare(text)
    closeness = similarity.closeness(x, y.t())
    if not torch.allclose(closeness, x @ y.t(), atol=1e-6):
        return None
    scale = x.norm(dim=-1) / vectors.norm(dim=-1).clamp(min=1e-12)  # as the similarity scales the vectors
    weights = similarity.pair_weights(closeness) * scale[:, None]  # (K, L)
    counted = located if bool(located.any()) else torch.ones_like(located)
    sums, directions = image.sums.center(counted[None]), y.to(image.vectors)  # type: ignore[union-attr]
    elements = (sums.project(directions)[0].double() * weights[:, None]).sum(-1)
    placeless = (weights * (sums.remainder[0] @ directions.t())).sum()
    # Of a score that is no weighted mean of the closeness: what the mean leaves of it.
    rest = similarity.shares(closeness).sum() - (similarity.pair_weights(closeness) * closeness).sum()
    return ScoreMap("sum", elements.sum(0).float(), elements.float(), float(placeless + rest))
