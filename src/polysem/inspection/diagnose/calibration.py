"""Can a score be believed? Whether a higher first score means a right answer more often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from polysem.evaluation.ranking import Ranking
from polysem.inspection.diagnose.geometry import auroc

BINS = 10
FOLDS = 5
_STEPS = 50

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bin:
    """Queries with about the same score. claimed: the probability that their scores stand for; right: the share whose
    first answer is right."""

    queries: int
    low: float
    high: float
    claimed: float
    right: float


@dataclass(frozen=True)
class Calibration:
    """Of the first answers of one direction.

    auroc: how often a right first answer scores higher than a wrong one; 0.5: the score says nothing.
    error: expected calibration error, in per cent, of the probability that a logistic curve makes of the score, fitted
    on other items than it is tested on. right: the share of queries whose first answer is right, in per cent.
    """

    auroc: float
    error: float
    right: float
    bins: tuple[Bin, ...]


def calibration(ranking: Ranking, clusters: npt.NDArray[np.integer]) -> Calibration | None:
    """clusters: (Q,) the item of each query: the curve is fitted without the item it is asked about. None where all
    first answers are right, or all are wrong, or there are too few to say."""
    if ranking.top is None:
        return None
    asked = np.flatnonzero(ranking.relevance.counts > 0)
    score = ranking.top.rank()[1][asked, 0].astype(np.float64)
    right = ranking.first == 0
    if len(asked) < 2 * BINS or right.all() or not right.any():
        return None
    claimed = _cross_fitted(score, right, clusters[asked] % FOLDS)
    order = np.argsort(score, kind="stable")
    bins, error = [], 0.0
    for part in np.array_split(order, BINS):
        said, was = float(claimed[part].mean()), float(right[part].mean())
        bins.append(Bin(len(part), float(score[part[0]]), float(score[part[-1]]), said, was))
        error += len(part) / len(order) * abs(said - was)
    known = torch.from_numpy(score)
    return Calibration(
        auroc(known[torch.from_numpy(right)], known[torch.from_numpy(~right)]),
        100 * error,
        100 * float(right.mean()),
        tuple(bins),
    )


def _cross_fitted(score: Floats, right: npt.NDArray[np.bool_], fold: npt.NDArray[np.integer]) -> Floats:
    found = np.empty(len(score))
    for number in range(FOLDS):
        here = fold == number
        if here.any():
            slope, height = _logistic(score[~here], right[~here]) if (~here).any() else (0.0, 0.0)
            found[here] = _sigmoid(slope * score[here] + height)
    return found


def _logistic(score: Floats, right: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and height of the curve, by Newton's method with a touch of shrinkage, on standardised scores."""
    middle, width = float(score.mean()), float(score.std()) or 1.0
    x = np.stack([(score - middle) / width, np.ones_like(score)], axis=1)
    weights = np.zeros(2)
    shrink = np.diag([1e-3, 1e-3])
    for _ in range(_STEPS):
        p = _sigmoid(x @ weights)
        slope = x.T @ (p - right) + shrink @ weights
        change = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + shrink, slope)
        weights = weights - np.clip(change, -2, 2)
        if np.abs(change).max() < 1e-8:
            break
    return float(weights[0] / width), float(weights[1] - weights[0] * middle / width)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -500, 500))))
