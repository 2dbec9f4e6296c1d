"""CxC, Crisscrossed Captions: people's ratings of image-text, text-text and image-image pairs of COCO.

Parekh et al. (EACL 2021). A pair rated 3 or more (images: 2.5) is right, and so is what COCO paired, unless CxC rated
it lower. docs/evaluation.md says where the figures of others may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from polysem.data.collection import Collection
from polysem.errors import InputError, unknown
from polysem.evaluation import metrics
from polysem.evaluation.protocols.annotated import (
    WithoutSelf,
    in_turn,
    pair_scores,
    per_query,
    rank_asked,
    relevance_of,
)
from polysem.evaluation.protocols.base import Measured, Protocol, Trial, register
from polysem.evaluation.protocols.coco_ids import CocoIds, match_test, own_ids
from polysem.evaluation.protocols.correlation import SAMPLES, bootstrap, spearman
from polysem.evaluation.protocols.cxc_files import Judged, read_judged
from polysem.evaluation.protocols.eccv_package import EccvPackage
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.relevance import Ints, Relevance
from polysem.evaluation.result import PerQuery
from polysem.evaluation.score_matrix import Scores

RIGHT = {"sits": 3.0, "sts": 3.0, "sis": 2.5}
OUTSIDE = 0.01
"""The share of rated pairs that may be outside the gallery, such as those of sixth captions."""

Quirk = Literal["zero-diagonal"]


@dataclass(frozen=True)
class Cxc(Protocol):
    """annotations: the folder of CxC's CSV files. Without it, image-text positives come from the package eccv-caption,
    and there is nothing else to measure.

    images: how many the split must have, where the CSV files are all that is known of it. samples: of the bootstrap.
    quirk: "zero-diagonal" is how VSE∞'s released code measures: an item is an answer to itself, with a score of 0. Here
    it is none.
    """

    name: str = "cxc"
    about: str = "COCO with CxC's ratings: image-text, text-text, image-image, and correlation with people"
    split: str | None = "test"
    annotations: str | Path | None = None
    images: int = 5000
    samples: int = SAMPLES
    quirk: Quirk | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return ("annotations", "images", "samples", "quirk")

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"A bootstrap takes at least one sample, got {self.samples}. CxC's authors take 1000.")
        if self.quirk is not None and self.quirk not in get_args(Quirk):
            raise unknown("quirk", self.quirk, get_args(Quirk))

    def gallery(self, collection: Collection) -> Collection:
        return self._ids(collection).gallery

    def carry_out(self, trial: Trial) -> Measured:
        subject, gallery = trial.subject, trial.gallery
        ids = self._ids(gallery)
        owners = gallery.caption_items
        judged, remarks = self._judged(ids, trial.split)
        remarks += _left_out(self.annotations, judged, subject.within)
        right = self._right(ids, owners, judged)
        straight, across = trial.ways()
        sources: dict[str, Scores] = {"i2t": straight, "t2i": across}
        itself = 0.0 if self.quirk == "zero-diagonal" else -np.inf
        sources |= {f"{side[0]}2{side[0]}": WithoutSelf(same, itself) for side, same in subject.within.items()}
        ways = [way for way in right if way in sources]
        rankings: dict[str, Ranking] = {}
        for way, step in zip(ways, in_turn(trial.progress, len(ways)), strict=True):
            rankings[way] = rank_asked(sources[way], right[way], keep=trial.keep, progress=step)
        sides: dict[str, Any] = {way: metrics.one_way(ranking) for way, ranking in rankings.items()}
        found: dict[str, Any] = {"rsum": metrics.rsum(sides["i2t"], sides["t2i"]), **sides}
        found |= self._correlations(judged, {**subject.within, "both": subject.scores})
        queries: dict[str, PerQuery] = {
            way: per_query(ranking, owners if way.startswith("t") else None) for way, ranking in rankings.items()
        }
        stamp = trial.stamp(
            self.name,
            measure="hit rate, CxC positives",
            remarks=(
                *ids.remarks,
                *remarks,
                *([self.quirk] if self.quirk else []),
                *(["correlations and figures within a side are inductive"] if trial.rescoring is not None else []),
            ),
        )
        return Measured(stamp, found, queries, rankings)

    def _ids(self, collection: Collection) -> CocoIds:
        ids = None if self.annotations is None else own_ids(collection)
        if ids is None:
            return match_test(collection, self._package().coco_test(), self.name)
        if len(ids.images) != self.images:
            raise InputError(
                f"Protocol {self.name} is defined on the {self.images} images of COCO's val or test split "
                f"(Karpathy's); {collection.name} has {len(ids.images)} here. Read COCO from dataset_coco.json, which "
                "knows the splits."
            )
        return ids

    def _package(self) -> EccvPackage:
        why = "reads its annotation from" if self.annotations is None else "finds the ids of unnamed captions in"
        return EccvPackage.find(None, self.name, why)

    def _judged(self, ids: CocoIds, split: str) -> tuple[dict[str, Judged], tuple[str, ...]]:
        """Rated pairs by task, left and right now being positions in the gallery."""
        if self.annotations is None:
            return {}, ()
        found, remarks = {}, []
        for task, pairs in read_judged(Path(self.annotations).expanduser(), split).items():
            sides = [ids.images if kind == "image" else ids.captions for kind in _KINDS[task]]
            left, right = _places(pairs.left, sides[0]), _places(pairs.right, sides[1])
            inside = (left >= 0) & (right >= 0)
            outside = int((~inside).sum())
            if outside > OUTSIDE * len(inside):
                worst = int(np.flatnonzero(~inside)[0])
                raise InputError(
                    f"{task}_{split}.csv: {outside} of its {len(inside)} pairs are not in the gallery of "
                    f"{len(ids.images)} images, e.g. ids {pairs.left[worst]} and {pairs.right[worst]}. Measure COCO's "
                    f"{split} split (Karpathy's), all of it, with COCO's ids for images and captions."
                )
            if outside:
                remarks.append(f"{outside} {task.upper()} pairs outside the gallery left out")
            found[task] = Judged(left[inside], right[inside], pairs.scores[inside])
        return found, tuple(remarks)

    def _right(self, ids: CocoIds, owners: Ints, judged: Mapping[str, Judged]) -> dict[str, Relevance]:
        """The right answers of each way that there are ratings for."""
        images, texts = len(ids.images), len(ids.captions)
        if not judged:
            package = self._package().annotation("cxc")
            return {
                "i2t": relevance_of(package.i2t, ids.images, ids.captions, self.name)[0],
                "t2i": relevance_of(package.t2i, ids.captions, ids.images, self.name)[0],
            }
        sits = judged["sits"]
        t2i = _rated_or_paired(sits, owners, (texts, images))
        found = {"i2t": t2i.transposed(), "t2i": t2i}
        if "sts" in judged:
            found["t2t"] = _alike(judged["sts"], RIGHT["sts"], siblings(owners), texts)
        if "sis" in judged:
            found["i2i"] = _alike(judged["sis"], RIGHT["sis"], (np.empty(0, int), np.empty(0, int)), images)
        return found

    def _correlations(self, judged: Mapping[str, Judged], sources: Mapping[str, Scores]) -> dict[str, Any]:
        """In per cent, as CxC prints them. A query is what the first column names."""
        found = {}
        for task, side in (("sits", "both"), ("sts", "text"), ("sis", "image")):
            if task in judged and side in sources:
                pairs = judged[task]
                places = (pairs.right, pairs.left) if task == "sits" else (pairs.left, pairs.right)
                scores = pair_scores(sources[side], *places)
                samples = bootstrap(pairs.left, pairs.scores, scores, self.samples)
                found[task] = {
                    "bootstrap_mean": 100.0 * float(samples.mean()),
                    "bootstrap_std": 100.0 * float(samples.std()),
                    "spearman": 100.0 * spearman(pairs.scores, scores),
                    "pairs": len(scores),
                }
        return found


_KINDS = {"sits": ("caption", "image"), "sts": ("caption", "caption"), "sis": ("image", "image")}


def siblings(owners: Ints) -> tuple[Ints, Ints]:
    """Captions and the other captions of their image, as pairs of positions."""
    own = Relevance.from_pairs(owners, np.arange(len(owners)), (int(owners.max(initial=-1)) + 1, len(owners)))
    left = np.repeat(np.arange(len(owners)), own.counts[owners])
    right = np.concatenate([own.of(owner) for owner in owners.tolist()])
    return left[left != right], right[left != right]


def _rated_or_paired(sits: Judged, owners: Ints, shape: tuple[int, int]) -> Relevance:
    high = sits.scores >= RIGHT["sits"]
    refused = set(zip(sits.left[~high].tolist(), sits.right[~high].tolist(), strict=True))
    kept = np.array([(text, image) not in refused for text, image in enumerate(owners.tolist())])
    texts = np.concatenate([sits.left[high], np.flatnonzero(kept)])
    return Relevance.from_pairs(texts, np.concatenate([sits.right[high], owners[kept]]), shape)


def _alike(pairs: Judged, least: float, known: tuple[Ints, Ints], size: int) -> Relevance:
    """What is like is like both ways round, and nothing is an answer to itself."""
    high = (pairs.scores >= least) & (pairs.left != pairs.right)
    left, right = pairs.left[high], pairs.right[high]
    return Relevance.from_pairs(
        np.concatenate([left, right, known[0]]), np.concatenate([right, left, known[1]]), (size, size)
    )


def _left_out(folder: str | Path | None, judged: Mapping[str, Judged], within: Mapping[str, Scores]) -> tuple[str, ...]:
    if folder is None:
        return ("image-text positives of eccv-caption, no other ratings given",)
    sides = {"text-text": ("sts", "text"), "image-image": ("sis", "image")}
    remarks = [f"no {name}: no file of ratings" for name, (task, _) in sides.items() if task not in judged]
    remarks += [f"no {name}: no embeddings" for name, (task, s) in sides.items() if task in judged and s not in within]
    return tuple(remarks)


def _places(numbers: Ints, among: Ints) -> Ints:
    """Where each number stands in `among`; -1: nowhere."""
    order = np.argsort(among, kind="stable")
    nearest = order[np.minimum(np.searchsorted(among[order], numbers), len(among) - 1)]
    return np.where(among[nearest] == numbers, nearest, -1)


register(Cxc())
