"""Re-scoring against hubness with the scores of all queries. It helps, and a single query cannot be answered that way:
numbers measured with it are stamped *transductive*.

All methods demote gallery items that too many queries find: score - bias(item), the bias being a different statistic of
the item's scores with all queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from polysem.errors import InputError, unknown
from polysem.evaluation.score_matrix import Floats, Rows, Scores
from polysem.evaluation.top_k import TopK

Method = Literal["dual-softmax", "query-bank", "csls"]
METHODS = get_args(Method)
_ROWS = 256


@dataclass(frozen=True)
class Rescoring:
    """A method and its parameters.

    dual-softmax: softmax over the gallery times softmax over the queries.
    query-bank: QB-Norm's inverted softmax with the queries themselves as the bank. (Its dynamic form spares queries
    whose first answer is no bank query's first answer; here every query is in the bank, so none is spared.)
    csls: twice the score minus the mean of the item's `neighbours` highest scores; the query's own mean would change
    nothing.
    """

    method: Method
    temperature: float = 0.05
    neighbours: int = 10

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("re-scoring", self.method, METHODS)
        if not 0 < self.temperature < np.inf or self.neighbours < 1:
            given = f"{self.temperature} and {self.neighbours}"
            raise InputError(f"Re-scoring needs a positive temperature and at least one neighbour, got {given}.")

    def __str__(self) -> str:
        detail = f"{self.neighbours} neighbours" if self.method == "csls" else f"temperature {self.temperature:g}"
        return f"{self.method} ({detail})"

    def both_ways(self, scores: Scores) -> tuple[Scores, Scores]:
        """The scores for image queries, and for text queries; both are (images, texts)."""
        return self.rescore(scores), self.rescore(scores.transpose()).transpose()

    def rescore(self, scores: Scores) -> Scores:
        """Re-score a matrix whose rows are the queries."""
        if self.method == "csls":
            top = TopK(scores.shape[1], min(self.neighbours, scores.shape[0]))
            gallery, first = np.arange(scores.shape[1]), 0
            for block in _blocks(scores):
                top.add_columns(np.arange(first, first + len(block)), gallery, block)
                first += len(block)
            top.flush()
            return _BiasedScores(scores, 2.0, top.values.mean(1, dtype=np.float64))
        spread = np.full(scores.shape[1], -np.inf)  # log-sum-exp over the queries
        for block in _blocks(scores):
            spread = np.logaddexp(spread, logsumexp(block.astype(np.float64) / self.temperature))
        return _BiasedScores(scores, 2.0 if self.method == "dual-softmax" else 1.0, self.temperature * spread)


class _BiasedScores(Scores):
    def __init__(self, plain: Scores, scale: float, bias: npt.NDArray[np.float64]) -> None:
        self.plain, self.scale, self.bias, self.shape = plain, scale, bias, plain.shape

    def tile(self, images: Rows, texts: Rows) -> Floats:
        tile = self.scale * self.plain.tile(images, texts).astype(np.float64)
        with np.errstate(invalid="ignore"):
            lowered = tile - self.bias[texts]
        return np.where(np.isinf(tile), tile, lowered)  # infinite scores stay where they are


def _blocks(scores: Scores) -> Iterator[Floats]:
    """The scores row block by row block."""
    for first in range(0, scores.shape[0], _ROWS):
        block = scores.checked_tile(slice(first, min(first + _ROWS, scores.shape[0])), slice(None))
        if np.isposinf(block.max()):
            raise InputError("A score is infinite: re-scoring compares how far scores are apart. Leave --rescore out.")
        yield block


def logsumexp(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(q, g) -> (g,)."""
    top = rows.max(0)
    steady = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):  # an item that every query rules out
        return np.asarray(np.log(np.exp(rows - steady).sum(0)) + steady, dtype=np.float64)
