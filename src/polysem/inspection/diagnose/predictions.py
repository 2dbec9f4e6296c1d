"""How far a model's predictions can be believed: the scores of first answers, and predicted labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polysem.evaluation.metrics import THRESHOLD, micro_f1
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.score_matrix import Floats
from polysem.inspection.gallery import EmbeddedGallery

BINS = 10
FOLDS = 5
_PENALTY = 1e-3
"""Of the logistic curve's slope and height: it keeps both finite where scores separate right from wrong."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CalibrationBin:
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
    bins: tuple[CalibrationBin, ...]


def measure_calibration(ranking: Ranking, clusters: npt.NDArray[np.integer]) -> Calibration | None:
    """None where all first answers are right, or all are wrong, or there are too few to say.

    Args:
        clusters: (Q,) the item of each query: the curve is fitted without the item it is tested on.
    """
    from sklearn.metrics import roc_auc_score

    queries = np.flatnonzero(ranking.relevance.counts > 0)
    right = ranking.first == 0
    if ranking.top is None or len(queries) < 2 * BINS or right.all() or not right.any():
        return None
    score = ranking.top.rank()[1][queries, 0].astype(np.float64)
    claimed = _cross_fit(score, right, clusters[queries] % FOLDS)
    order = np.argsort(score, kind="stable")
    bins, error = [], 0.0
    for part in np.array_split(order, BINS):
        claim, truth = float(claimed[part].mean()), float(right[part].mean())
        bins.append(CalibrationBin(len(part), float(score[part[0]]), float(score[part[-1]]), claim, truth))
        error += len(part) / len(order) * abs(claim - truth)
    return Calibration(float(roc_auc_score(right, score)), 100 * error, 100 * float(right.mean()), tuple(bins))


def _cross_fit(score: Floats, right: Flags, fold: npt.NDArray[np.integer]) -> Floats:
    """The probability of being right, of each fold from a logistic curve fitted on the others."""
    from sklearn.linear_model import LogisticRegression

    claimed = np.empty(len(score))
    for number in np.unique(fold):
        test, train = fold == number, fold != number
        if len(np.unique(right[train])) < 2:
            claimed[test] = right[train].mean() if train.any() else 0.5
            continue
        middle, width = float(score[train].mean()), float(score[train].std()) or 1.0
        x = np.stack([(score - middle) / width, np.ones_like(score)], axis=1)
        curve = LogisticRegression(C=1 / _PENALTY, fit_intercept=False, solver="newton-cholesky", tol=1e-10)
        claimed[test] = curve.fit(x[train], right[train]).predict_proba(x[test])[:, 1]
    return claimed


@dataclass(frozen=True)
class LabelMetrics:
    """present: how many labels the items here have. unknown: those of them that are no class of the model.

    micro_f1: by side, in per cent. silent: by side, the labels that some item here has and that are predicted of none.
    """

    present: int
    unknown: tuple[str, ...]
    micro_f1: Mapping[str, float]
    silent: Mapping[str, tuple[str, ...]]


def measure_labels(gallery: EmbeddedGallery) -> LabelMetrics | None:
    """None of a model that predicts no labels, or where the items have none."""
    items, classes, predictions = gallery.items, gallery.model.labels, gallery.embeddings.predictions
    present = items.label_names
    if not classes or not predictions or not present:
        return None
    owners = {"image": range(len(items)), "text": items.caption_items}
    scores, silent = {}, {}
    for side, values in predictions.items():
        scores[side] = micro_f1(values, [items[owner].labels for owner in owners[side]], classes)
        ever = dict(zip(classes, (values >= THRESHOLD).any(0).tolist(), strict=True))
        silent[side] = tuple(name for name in present if not ever.get(name, True))
    return LabelMetrics(len(present), tuple(name for name in present if name not in classes), scores, silent)
