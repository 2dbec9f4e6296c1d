"""Auxiliary losses: a recipe's objective once more: on global vectors, on each element by itself, on residuals."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from polysem import masked_ops
from polysem.errors import InputError
from polysem.objectives.base import Loss, Objective
from polysem.sets.base import SetPrediction
from polysem.similarity.base import Similarity

On = Literal["global", "elements", "residual"]


def auxiliary_loss(
    on: On,
    objective: Objective,
    images: SetPrediction,
    texts: SetPrediction,
    positives: Tensor,
    similarity: Similarity,
) -> Tensor:
    """The objective of other scores than the sets': a scalar.

    on: "global", of the cosines of the items' global vectors, so that these make a single-vector model of their own;
        "elements", of the scores of each element alone with the other side's sets, averaged over the elements, so that
        each learns to match without the others; "residual", of the sets of the images' elements before the global
        vector joined them, so that these say something that can be asked for, not only what sets elements apart.
    """
    if on == "global":
        loss: Loss = objective(global_scores(images, texts), positives)
        return loss.total
    if on == "residual":
        residual = similarity.scores(masked_ops.normalise(images.residual), texts.vectors)
        return objective(residual, positives).total  # type: ignore[no-any-return]
    alone = element_scores(images.vectors, texts.vectors, similarity)
    return torch.stack([objective(scores, positives).total for scores in alone]).mean()


def global_scores(images: SetPrediction, texts: SetPrediction) -> Tensor:
    """(I, T) cosines of the global vectors. A set of one whose predictor has no other global vector is its own."""
    return _global_vectors(images, "images") @ _global_vectors(texts, "texts").t()


def element_scores(images: Tensor, texts: Tensor, similarity: Similarity) -> Tensor:
    """(E, I, T): of each element of the image sets (I, K, D) alone, then of each of the text sets (T, L, D).

    A side of single vectors has no elements to take apart; where both are, their score is the only one.
    """
    (items, k), (captions, size) = images.shape[:2], texts.shape[:2]
    scores = []
    if k > 1 or size == 1:
        alone = similarity.scores(images.flatten(0, 1)[:, None], texts)
        scores.append(alone.view(items, k, captions).transpose(0, 1))
    if size > 1:
        alone = similarity.scores(images, texts.flatten(0, 1)[:, None])
        scores.append(alone.view(items, captions, size).permute(2, 0, 1))
    return torch.cat(scores)


def _global_vectors(side: SetPrediction, name: str) -> Tensor:
    if side.global_vector is not None:
        return side.global_vector
    if side.vectors.shape[1] != 1:
        raise InputError(
            f"The {name} are sets of {side.vectors.shape[1]} by a predictor without a global vector. Take one that has "
            "it, such as competing_readings, or leave out the auxiliary loss on: global."
        )
    return side.vectors[:, 0]
