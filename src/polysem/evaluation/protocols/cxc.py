"""CxC, Crisscrossed Captions: people's ratings of image-text, text-text and image-image pairs of COCO.

Parekh et al. (EACL 2021). A pair rated 3 or more (images: 2.5) is right, and so is what COCO paired, unless CxC rated
it lower. The ratings are in `sits_test.csv`, `sts_test.csv`, `sis_test.csv`, and the same for val.
docs/evaluation.md says where the figures of others may differ.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import PositiveInt

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.metrics import Values
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, per_query_metrics, register
from polysem.evaluation.protocols.eccv import CocoIds, EccvCaptionFiles, match_test_split, parse_file_name, read_own_ids
from polysem.evaluation.ranking import Relevance
from polysem.evaluation.score_matrix import Floats, Ints, Rows, Scores

RIGHT = {"sits": 3.0, "sts": 3.0, "sis": 2.5}
"""The least rating of a right answer."""
OUTSIDE = 0.01
"""The share of rated pairs that may be outside the gallery, such as those of sixth captions."""
SAMPLES = 1000
COLUMNS = {"sits": ("caption", "image"), "sts": ("caption1", "caption2"), "sis": ("image1", "image2")}
RATINGS = ("agg_score", "score")
SOURCE = "the folder data of github.com/google-research-datasets/Crisscrossed-Captions"


@dataclass(frozen=True, eq=False)
class RatedPairs:
    """Pairs that people rated from 0 to 5. left, right: (P,) in the order of the file's columns: COCO's ids as they
    are read, then positions in the gallery."""

    left: Ints
    right: Ints
    scores: npt.NDArray[np.float64]


@register
@dataclass(frozen=True)
class CxcProtocol(Protocol):
    """Recalls under CxC's positives in four directions, and Spearman's correlation of scores with ratings.

    Args:
        annotations: The folder of CxC's CSV files. Without it, image-text positives come from the package eccv-caption,
            and there is nothing else to measure.
        images: How many the split must have, where the CSV files are all that is known of it.
        samples: Of the bootstrap.
        quirk: "zero-diagonal" is how VSE∞'s released code measures: an item is an answer to itself, with a score of 0.
            Here it is none.
    """

    name: str = "cxc"
    about: str = "COCO with CxC's ratings: image-text, text-text, image-image, and correlation with people"
    split: str | None = "test"
    annotations: str | Path | None = None
    images: int = 5000
    samples: PositiveInt = SAMPLES
    quirk: Literal["zero-diagonal"] | None = None

    options = ("annotations", "images", "samples", "quirk")

    def gallery(self, collection: Collection) -> Collection:
        return self._ids(collection).gallery

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        within, owners = task.subject.within, task.gallery.caption_items
        ids = self._ids(task.gallery)
        rated, remarks = self._rated_pairs(ids, task.split)
        if self.annotations is None:
            remarks.append("image-text positives of eccv-caption, no other ratings given")
        else:
            for name, kind, side in (("text-text", "sts", "text"), ("image-image", "sis", "image")):
                if kind not in rated:
                    remarks.append(f"no {name}: no file of ratings")
                elif side not in within:
                    remarks.append(f"no {name}: no embeddings")
        itself = 0.0 if self.quirk == "zero-diagonal" else -np.inf
        scores = task.directed_scores()
        scores |= {f"{side[0]}2{side[0]}": OffDiagonalScores(same, itself) for side, same in within.items()}
        right = self._relevance(ids, owners, rated)
        rankings = task.rank({way: each for way, each in right.items() if way in scores}, scores)
        result = metrics.bidirectional_metrics(rankings)
        result |= self._correlations(rated, {**within, "both": task.subject.scores})
        if self.quirk:
            remarks.append(self.quirk)
        if task.rescoring is not None:
            remarks.append("correlations and figures within a side are inductive")
        stamp = task.stamp(self.name, measure="hit rate, CxC positives", remarks=(*ids.remarks, *remarks))
        return ProtocolResult(stamp, result, per_query_metrics([rankings], owners), rankings)

    def _ids(self, collection: Collection) -> CocoIds:
        ids = None if self.annotations is None else read_own_ids(collection)
        if ids is None:
            return match_test_split(collection, self._files(), self.name)
        if len(ids.images) != self.images:
            raise InputError(
                f"Protocol {self.name} is defined on the {self.images} images of COCO's val or test split (Karpathy); "
                f"{collection.name} has {len(ids.images)} here. Read COCO from dataset_coco.json: it has the splits."
            )
        return ids

    def _files(self) -> EccvCaptionFiles:
        why = "reads its annotation from" if self.annotations is None else "finds the ids of unnamed captions in"
        return EccvCaptionFiles.find(None, self.name, why)

    def _rated_pairs(self, ids: CocoIds, split: str) -> tuple[dict[str, RatedPairs], list[str]]:
        """Rated pairs by task, by positions in the gallery, and remarks."""
        rated: dict[str, RatedPairs] = {}
        remarks: list[str] = []
        if self.annotations is None:
            return rated, remarks
        for task, pairs in read_rated_pairs(Path(self.annotations).expanduser(), split).items():
            sides = (ids.images if name.startswith("image") else ids.captions for name in COLUMNS[task])
            position = [{number: i for i, number in enumerate(side.tolist())} for side in sides]
            columns = zip(position, (pairs.left, pairs.right), strict=True)
            left, right = (np.array([at.get(number, -1) for number in column.tolist()]) for at, column in columns)
            inside = (left >= 0) & (right >= 0)
            outside = int((~inside).sum())
            if outside > OUTSIDE * len(inside):
                first = int(np.flatnonzero(~inside)[0])
                raise InputError(
                    f"{task}_{split}.csv: {outside} of its {len(inside)} pairs are not in the gallery, e.g. ids "
                    f"{pairs.left[first]} and {pairs.right[first]}. Measure COCO's {split} split with COCO's ids."
                )
            if outside:
                remarks.append(f"{outside} {task.upper()} pairs outside the gallery left out")
            rated[task] = RatedPairs(left[inside], right[inside], pairs.scores[inside])
        return rated, remarks

    def _relevance(self, ids: CocoIds, owners: Ints, rated: Mapping[str, RatedPairs]) -> dict[str, Relevance]:
        """The right answers of each direction that there are ratings for."""
        if not rated:
            positives = ids.match_positives(self._files().read_positives("cxc"), self.name)
            return {way: relevance for way, (relevance, _) in positives.items()}
        # Rated high, or paired by COCO and not rated low.
        sits = rated["sits"]
        high = sits.scores >= RIGHT["sits"]
        refused = set(zip(sits.left[~high].tolist(), sits.right[~high].tolist(), strict=True))
        paired = np.array([(text, image) not in refused for text, image in enumerate(owners.tolist())])
        texts = np.concatenate([sits.left[high], np.flatnonzero(paired)])
        images = np.concatenate([sits.right[high], owners[paired]])
        t2i = Relevance.from_pairs(texts, images, (len(ids.captions), len(ids.images)))
        relevance = {"i2t": t2i.transpose(), "t2i": t2i}
        # Right in both orders; nothing is an answer to itself.
        for way, task, known in (("t2t", "sts", pair_siblings(owners)), ("i2i", "sis", np.empty((0, 2), int))):
            if pairs := rated.get(task):
                high = (pairs.scores >= RIGHT[task]) & (pairs.left != pairs.right)
                left, right = pairs.left[high], pairs.right[high]
                rows, columns = np.concatenate([left, right, known[:, 0]]), np.concatenate([right, left, known[:, 1]])
                size = len(ids.captions if way == "t2t" else ids.images)
                relevance[way] = Relevance.from_pairs(rows, columns, (size, size))
        return relevance

    def _correlations(self, rated: Mapping[str, RatedPairs], sources: Mapping[str, Scores]) -> dict[str, Any]:
        """In per cent, as CxC prints them. A query is what the first column names."""
        result = {}
        for task, side in (("sits", "both"), ("sts", "text"), ("sis", "image")):
            if task in rated and side in sources:
                pairs = rated[task]
                rows, columns = (pairs.right, pairs.left) if task == "sits" else (pairs.left, pairs.right)
                scores = sources[side].pairs(rows, columns)
                samples = bootstrap_spearman(pairs.left, pairs.scores, scores, self.samples)
                result[task] = {
                    "bootstrap_mean": 100.0 * float(samples.mean()),
                    "bootstrap_std": 100.0 * float(samples.std()),
                    "spearman": 100.0 * spearman(pairs.scores, scores),
                    "pairs": len(scores),
                }
        return result


def pair_siblings(owners: Ints) -> Ints:
    """(P, 2) captions and the other captions of their image."""
    own = Relevance.from_pairs(owners, np.arange(len(owners)), (int(owners.max(initial=-1)) + 1, len(owners)))
    pairs = [pair for image in range(len(own)) for pair in permutations(own.of(image).tolist(), 2)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


class OffDiagonalScores(Scores):
    """Scores of items with each other; `value` replaces an item's score with itself."""

    def __init__(self, plain: Scores, value: float = -np.inf) -> None:
        self.plain, self.value, self.shape = plain, value, plain.shape

    def tile(self, images: Rows, texts: Rows) -> Floats:
        tile = np.array(self.plain.tile(images, texts))
        rows, columns = np.arange(self.shape[0])[images], np.arange(self.shape[1])[texts]
        tile[rows[:, None] == columns] = self.value
        return tile


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Pearson's correlation of the ranks; equal values share their mean rank. NaN if either does not vary.

    Example:
        >>> spearman([1, 2, 3], [10, 20, 90])
        1.0
    """
    centred = []
    for values in (a, b):
        _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
        centred.append(ranks - ranks.mean())
    first, second = centred
    scale = np.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / scale) if scale > 0 else float("nan")


def bootstrap_spearman(queries: Ints, ratings: Values, scores: Values, samples: int = SAMPLES, seed: int = 0) -> Values:
    """(samples,) correlations, each over a random half of the queries with one random pair of each, as in CxC's paper:
    pairs that share a query depend on each other, and a sample has none of those."""
    order = np.argsort(queries, kind="stable")
    _, starts, counts = np.unique(queries[order], return_index=True, return_counts=True)
    generator = np.random.default_rng(seed)
    half = (len(starts) + 1) // 2
    correlations = []
    for _ in range(samples):
        chosen = generator.permutation(len(starts))[:half]
        pairs = order[starts[chosen] + generator.integers(counts[chosen])]
        correlations.append(spearman(ratings[pairs], scores[pairs]))
    return np.array(correlations)


def read_rated_pairs(folder: Path, split: str) -> dict[str, RatedPairs]:
    """By task. The image-text file must be there; the other two may be missing."""
    if split not in ("val", "test"):
        raise InputError(f"CxC rated COCO's val and test splits (Karpathy's), not {split!r}. Name one with --split.")
    paths = {task: folder / f"{task}_{split}.csv" for task in COLUMNS}
    if not paths["sits"].is_file():
        raise InputError(
            f"{folder} has no {paths['sits'].name}. Give CxC's CSV files, --option annotations=FOLDER: {SOURCE}."
        )
    return {task: _read_csv(path, *COLUMNS[task]) for task, path in paths.items() if path.is_file()}


def _read_csv(path: Path, first: str, second: str) -> RatedPairs:
    rows = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or ())
            rating = next((name for name in RATINGS if name in names), None)
            if rating is None or first not in names or second not in names:
                raise InputError(
                    f"{path}: expected the columns {first}, {second} and {RATINGS[0]}, got "
                    f"{', '.join(names) or 'none'}. Take the file without _raw from {SOURCE}."
                )
            for row in reader:
                try:  # COCO_val2014:sentid:648388 -> 648388, COCO_val2014_000000431431.jpg -> 431431
                    ids = (parse_file_name(row[name]) or int(row[name].rsplit(":", 1)[-1]) for name in (first, second))
                    rows.append((*ids, float(row[rating])))
                except (TypeError, ValueError):
                    problem = f"expected two of COCO's ids and a number, got {list(row.values())}"
                    raise InputError(f"{path} line {reader.line_num}: {problem}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from None
    if not rows:
        raise InputError(f"{path} holds no pairs. Take it again from {SOURCE}.")
    return RatedPairs(*(np.array(column) for column in zip(*rows, strict=True)))
