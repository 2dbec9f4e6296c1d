"""Masked-modelling losses: which word, or which region, a masked token was."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from polysem import masked_ops

TEMPERATURE = 0.1
"""Of the choice among masked regions."""


def word_terms(logits: Tensor, words: Tensor, variant: str = "paper") -> Tensor:
    """(M,): cross-entropy of each masked word. logits: (M, V); words: (M,), the true ones.

    variant "official": the released code takes the softmax of sigmoids, which cannot come near 0.
    """
    return F.cross_entropy(logits.sigmoid() if variant == "official" else logits, words, reduction="none")


def region_terms(predictions: Tensor, regions: Tensor) -> Tensor:
    """(M,): cross-entropy of picking each masked region's features among those of all masked ones, by cosine.

    predictions, regions: (M, F). The released code predicts a detector's class of the region; this needs no detector.
    """
    scores = masked_ops.unit(predictions) @ masked_ops.unit(regions).t() / TEMPERATURE
    return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device), reduction="none")
