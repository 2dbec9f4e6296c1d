"""Error analysis: which labels are confused with which, the worst queries with what was answered instead, how far the
scores of first answers can be believed, and predicted labels.

The supplement of label-wise semantic sharing puts failures down to super-class confusion (vegetables for fruit) and
semantic confusion (traffic lights for traffic signs: what is seen together is hard to tell apart). It gives examples,
and no rule; the rules here are ours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from polysem.data.collection import Collection
from polysem.evaluation.metrics import THRESHOLD, micro_f1
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.score_matrix import Floats, Scores
from polysem.inspection.gallery import EmbeddedGallery
from polysem.synthetic.scenes.catalogue import name_noun

ConfusionKind = Literal["fits too", "super-class", "semantic", "unrelated"]
KINDS: dict[ConfusionKind, str] = {
    "fits too": "the picture shows everything that the text names: by its labels it is not a mistake",
    "super-class": "what the text names is not there, but its like of the same group: a pear for an apple",
    "semantic": "part of what the text names is there, the rest is something of another kind",
    "unrelated": "nothing that the text names is there, nor anything like it",
}
SWAPS, FAILURES, ANSWERS = 12, 8, 3
"""How many are listed."""
BINS, FOLDS = 10, 5
_PENALTY = 1e-3
"""Of the logistic curve's slope and height: it keeps both finite where scores separate right from wrong."""


class NameFinder:
    """Finds names of things in captions, in the singular and the plural.

    Example:
        >>> sorted(NameFinder(["dog", "tree", "fir tree"]).find("Two dogs by a fir tree."))
        ['dog', 'fir tree']
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._name_of: dict[str, str] = {}
        for name in sorted(set(names)):
            for form in (name, name_noun(name), name_noun(name, several=True), f"{name}s"):
                self._name_of.setdefault(form.lower(), name)
        # The longest first: a "fir tree" names no "tree".
        forms = "|".join(re.escape(form) for form in sorted(self._name_of, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<!\w)(?:{forms})(?!\w)") if forms else None

    def find(self, caption: str) -> frozenset[str]:
        """The names that occur in the caption."""
        forms = self._pattern.findall(caption.lower()) if self._pattern is not None else []
        return frozenset(self._name_of[form] for form in forms)


@dataclass(frozen=True)
class LabelSwap:
    """says: a label that the text names and the picture lacks. shows: one of the picture that the text does not name.
    together: the share of items with the former that also have the latter."""

    says: str
    shows: str
    kind: ConfusionKind
    times: int
    together: float


@dataclass(frozen=True)
class Confusions:
    """Wrong first answers of one direction. wrong: how many. kinds: how many of each kind. swaps: the most frequent."""

    wrong: int
    kinds: Mapping[str, int]
    swaps: tuple[LabelSwap, ...]


def label_groups(items: Collection) -> dict[str, str]:
    """label -> group, as far as boxes tell."""
    return {box.name: box.group for item in items for box in item.boxes if box.group}


def count_confusions(ranking: Ranking, items: Collection, groups: Mapping[str, str], from_text: bool) -> Confusions:
    """The kinds of wrong first answers. A text stands for the labels it names, if any, else for all of its item's.

    groups: the super-class of labels, where known; a label that is a super-class itself is left out.
    """
    supers = set(groups.values()) - set(groups)
    labels = [frozenset(item.labels) - supers for item in items]
    captions, owners = items.captions, items.caption_items.tolist()
    names = NameFinder(label for own in labels for label in own)
    seen = Counter(label for own in labels for label in own)
    both = Counter((a, b) for own in labels for a in own for b in own if a != b)
    kinds, swaps, wrong = Counter[ConfusionKind](), Counter[tuple[str, str, ConfusionKind]](), 0
    first = [] if ranking.top is None else ranking.top.rank()[0][:, 0].tolist()
    for query, answer in enumerate(first):
        text, image = (query, answer) if from_text else (answer, query)
        if answer < 0 or ranking.relevance.counts[query] == 0 or owners[text] == image:
            continue
        wrong += 1
        kind, pairs = classify_confusion(names.find(captions[text]) or labels[owners[text]], labels[image], groups)
        kinds[kind] += 1
        swaps.update((a, b, "super-class" if _same_group(a, b, groups) else "semantic") for a, b in pairs)
    listed = (
        LabelSwap(says, shows, kind, times, both[says, shows] / max(1, seen[says]))
        for (says, shows, kind), times in swaps.most_common(SWAPS)
    )
    return Confusions(wrong, {kind: kinds[kind] for kind in KINDS}, tuple(listed))


def classify_confusion(
    says: frozenset[str], shows: frozenset[str], groups: Mapping[str, str]
) -> tuple[ConfusionKind, list[tuple[str, str]]]:
    """The kind of a wrong answer, and which label stands in for which."""
    missing, extra = sorted(says - shows), sorted(shows - says)
    if not missing:
        return "fits too", []
    likes = {label: [other for other in extra if _same_group(label, other, groups)] for label in missing}
    pairs = [(label, other) for label in missing for other in likes[label] or extra]
    if all(likes.values()):
        return "super-class", pairs
    return ("semantic" if says & shows or any(likes.values()) else "unrelated"), pairs


def _same_group(a: str, b: str, groups: Mapping[str, str]) -> bool:
    return a in groups and groups.get(b) == groups[a]


@dataclass(frozen=True)
class WrongAnswer:
    """number: in the gallery. item: its position in the collection."""

    number: int
    item: int
    score: float


@dataclass(frozen=True)
class RetrievalFailure:
    """query: its number among the queries. item: its position in the collection. right, rank: the first right answer's
    number in the gallery, and its rank from 1. answers: what came first."""

    query: int
    item: int
    right: int
    rank: int
    answers: tuple[WrongAnswer, ...]


def find_failures(
    ranking: Ranking, scores: Scores, query_items: Sequence[int], answer_items: Sequence[int], most: int = FAILURES
) -> list[RetrievalFailure]:
    """The queries whose right answer ranks lowest, the worst first.

    One failure of each item at most: several captions of a difficult picture fail for the same reason.
    scores: (queries, gallery). query_items, answer_items: the item of each query and of each answer.
    """
    if ranking.top is None:
        return []
    queries = np.flatnonzero(ranking.relevance.counts > 0)
    ids, values = ranking.top.rank()
    failures: dict[int, RetrievalFailure] = {}
    for row in np.argsort(-ranking.first, kind="stable").tolist():
        query = int(queries[row])
        item = query_items[query]
        if ranking.first[row] == 0 or len(failures) == most:
            break
        if item in failures:
            continue
        positives = ranking.relevance.of(query)
        right = positives[int(scores.tile(np.array([query]), positives)[0].argmax())]
        answers = tuple(
            WrongAnswer(answer, answer_items[answer], float(score))
            for answer, score in zip(ids[query, :ANSWERS].tolist(), values[query, :ANSWERS].tolist(), strict=True)
            if answer >= 0
        )
        failures[item] = RetrievalFailure(query, item, int(right), int(ranking.first[row]) + 1, answers)
    return list(failures.values())


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


def _cross_fit(score: Floats, right: npt.NDArray[np.bool_], fold: npt.NDArray[np.integer]) -> Floats:
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
    """present: how many labels the items here have. unknown: those that the model has no class for.

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
