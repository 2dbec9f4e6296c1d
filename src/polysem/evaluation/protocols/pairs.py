"""Captions find their image and images their captions: the protocols of most papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import PositiveInt

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.protocols.base import (
    Measured,
    Protocol,
    Trial,
    register,
    with_captions,
)
from polysem.evaluation.ranking import BothWays, Ranking, rank_both_ways
from polysem.evaluation.result import PerQuery
from polysem.evaluation.score_matrix import Scores


@dataclass(frozen=True)
class Pairs(Protocol):
    """Captions find their image and images their captions.

    images, captions: what the collection must have; None: any. datasets: what the data set may call itself; by another
    name it is measured with a remark. folds: consecutive blocks of equal size.
    whole: measure the whole gallery too (under "whole") when there are folds.
    """

    name: str
    about: str
    split: str | None = "test"
    images: int | None = None
    captions: PositiveInt | None = None
    folds: PositiveInt = 1
    whole: bool = False
    datasets: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        return ("captions", "folds", "whole") if self.images is None else ("whole",)

    def gallery(self, collection: Collection) -> Collection:
        found = with_captions(collection)
        if self.images is None and self.captions is None:
            return collection  # an image without captions is still one that others must be told from
        if self.images is not None and len(found) != self.images:
            raise InputError(
                f"Protocol {self.name} is defined on {self.images} images; {collection.name} has {len(found)} with "
                "captions here. Check --split, or measure with --protocol pairs, whose stamp says what it was."
            )
        if self.captions is not None:
            return found.with_captions(self.captions, f"Protocol {self.name}")
        return found

    def _is_meant(self, name: str) -> bool:
        return not self.datasets or any(_plain(known) in _plain(name) for known in self.datasets)

    def carry_out(self, trial: Trial) -> Measured:
        subject, gallery = trial.subject, trial.gallery
        owners = gallery.caption_items
        if len(gallery) % self.folds:
            raise InputError(
                f"{len(gallery)} images cannot be divided into {self.folds} folds of one size: figures of galleries of "
                "different sizes have no mean. Choose another number of folds."
            )
        stamp = trial.stamp(
            self.name,
            folds=self.folds,
            remarks=() if self._is_meant(gallery.name) else (f"NOT KNOWN TO BE {self.datasets[0].upper()}",),
        )
        kept = max(trial.keep, metrics.DEPTH)
        whole = self.folds == 1 or self.whole

        def rank(scores: Scores) -> tuple[BothWays | None, list[BothWays]]:
            return rank_both_ways(
                scores, owners, folds=self.folds, whole=whole, keep=kept if whole else 0, progress=trial.progress
            )

        if trial.rescoring is None:
            found, folds = rank(subject.scores)
        else:
            if self.folds > 1:
                raise InputError(
                    f"Re-scoring with {self.folds} folds would let queries of other folds have a say. "
                    "Leave --rescore out, or take a protocol without folds."
                )
            forward, backward = (rank(part)[0] for part in trial.rescoring.both_ways(subject.scores))
            found, folds = BothWays(forward.i2t, backward.t2i), []  # type: ignore[union-attr]
        parts = folds or [each for each in (found,) if each is not None]
        values = [metrics.both_ways(each) for each in parts]
        result: dict[str, Any] = metrics.mean_of(values) if folds else values[0]
        if folds and found is not None:
            result["whole"] = metrics.both_ways(found)
        queries = {"i2t": _per_query([p.i2t for p in parts], None), "t2i": _per_query([p.t2i for p in parts], owners)}
        rankings = {} if found is None else {"i2t": found.i2t, "t2i": found.t2i}
        return Measured(stamp, result, queries, rankings)


def _plain(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign.isalnum())


def _per_query(rankings: list[Ranking], owners: Any) -> PerQuery:
    """The queries of all folds one after the other. owners: the image of each text, for queries that are texts."""
    values = [metrics.per_query(ranking) for ranking in rankings]
    clusters, first = [], 0
    for ranking in rankings:
        clusters.append(first + np.flatnonzero(ranking.relevance.counts > 0))
        first += len(ranking.relevance)
    queries = np.concatenate(clusters)
    joined = {name: np.concatenate([each[name] for each in values]) for name in values[0]}
    return PerQuery(joined, queries if owners is None else np.asarray(owners)[queries])


for protocol in (
    Pairs(
        "f8k-1k",
        "Flickr8k: 1,000 test images, five captions each",
        images=1000,
        captions=5,
        datasets=("flickr8k", "f8k"),
    ),
    Pairs(
        "f30k-1k",
        "Flickr30K: 1,000 test images, five captions each",
        images=1000,
        captions=5,
        datasets=("flickr30k", "f30k"),
    ),
    Pairs("coco-5k", "COCO: all 5,000 test images, five captions each", images=5000, captions=5, datasets=("coco",)),
    Pairs(
        "coco-1k-5fold",
        "COCO: mean over five consecutive blocks of 1,000 test images, five captions each",
        images=5000,
        captions=5,
        datasets=("coco",),
        folds=5,
    ),
    Pairs("pairs", "any collection, any number of captions per image"),
):
    register(protocol)
