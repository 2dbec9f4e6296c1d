"""Are the sets sets? How far their elements lie apart, and whether the score makes anything of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polysem import masked_ops
from polysem.evaluation.ranking import rank_bidirectional
from polysem.evaluation.score_matrix import Floats, Rows, Scores
from polysem.evaluation.top_k import TopK

FIRST = 10
"""Answers of a query that are compared."""
_BINS = 24
_LEAST = 1e-8
"""Circular variance that counts as none."""


@dataclass(frozen=True)
class Spread:
    """How far the elements of one side's sets lie apart.

    variance: circular variance, 1 - |mean of the unit elements|, mean over items; log_variance: its natural logarithm.
    within: the share of all variance of the side's elements that lies within sets, the rest being between items.
    edges, counts: a histogram of ln(circular variance) over items.
    """

    elements: int
    variance: float
    log_variance: float
    within: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


def spread(vectors: Tensor) -> Spread:
    """vectors: (n, K, D), K at least 2."""
    unit = masked_ops.unit(vectors.float())
    middle = unit.mean(1)
    variances = (1 - middle.norm(dim=-1)).clamp(min=0)
    apart = (unit - middle[:, None]).square().sum(-1).mean()
    whole = (unit - unit.mean((0, 1))).square().sum(-1).mean().clamp(min=1e-12)
    counts, edges = np.histogram(variances.clamp(min=_LEAST).log().numpy(), bins=_BINS)
    mean = float(variances.mean())
    return Spread(
        int(vectors.shape[1]),
        mean,
        math.log(max(mean, _LEAST)),
        float(apart / whole),
        tuple(map(float, edges)),
        tuple(map(int, counts)),
    )


@dataclass(frozen=True)
class AsOne:
    """Of the first answers to a query, the share that stays when every set is replaced by one vector, the mean of its
    elements. 1: the score makes nothing of there being several."""

    i2t: float
    t2i: float
    first: int


def as_one(best: dict[str, TopK], images: Tensor, texts: Tensor, owners: npt.NDArray[np.integer]) -> AsOne:
    """best: the highest scores of both directions, "i2t" and "t2i"."""
    scores = _Inner(images.float().mean(1), texts.float().mean(1))
    found, _ = rank_bidirectional(scores, owners, keep=FIRST)
    if found is None or found.i2t.top is None or found.t2i.top is None:
        raise AssertionError("the highest scores were asked for")
    kept = {way: _kept(best[way], other) for way, other in (("i2t", found.i2t.top), ("t2i", found.t2i.top))}
    return AsOne(kept["i2t"], kept["t2i"], min(FIRST, *scores.shape))


def _kept(one: TopK, other: TopK) -> float:
    a, b = one.rank()[0][:, :FIRST], other.rank()[0][:, :FIRST]
    there = (a[:, :, None] == b[:, None, :]).any(2)
    return float(there[a >= 0].mean()) if (a >= 0).any() else float("nan")


class _Inner(Scores):
    """Inner products of single vectors."""

    def __init__(self, images: Tensor, texts: Tensor) -> None:
        self.images, self.texts = images.double(), texts.double()
        self.shape = (len(images), len(texts))

    def tile(self, images: Rows, texts: Rows) -> Floats:
        with torch.inference_mode():
            return (self.images[images] @ self.texts[texts].t()).numpy()
