"""Losses of guessing tokens that were hidden: which word stood there, which region."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from polysem import masked_ops

TEMPERATURE = 0.1
"""Of the choice among hidden regions."""


def word_terms(logits: Tensor, words: Tensor, variant: str = "paper") -> Tensor:
    """(M,): cross-entropy of each hidden word. logits: (M, V); words: (M,), what stood there.

    variant "official": the released code takes the softmax of sigmoids, which cannot come near 0.
    """
    return F.cross_entropy(logits.sigmoid() if variant == "official" else logits, words, reduction="none")


def region_terms(guesses: Tensor, regions: Tensor) -> Tensor:
    """(M,): cross-entropy of telling each hidden region's features from those of the other hidden ones, by cosine.

    guesses, regions: (M, F). The released code asks for a detector's class of the region; this needs no detector.
    """
    scores = masked_ops.unit(guesses) @ masked_ops.unit(regions).t() / TEMPERATURE
    return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device), reduction="none")
