"""Captions find their image and images their captions: the protocols of most papers, and HGR's for videos."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from pydantic import PositiveInt

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, per_query_metrics, register
from polysem.evaluation.ranking import Ranking, Relevance, rank_bidirectional
from polysem.evaluation.top_k import TopK


@dataclass(frozen=True)
class PairsProtocol(Protocol):
    """Captions find their image and images their captions.

    Args:
        images, captions: What the collection must have; None: any.
        folds: Consecutive blocks of equal size, over which metrics are averaged.
        whole: With folds, measure the whole gallery too, under "whole".
        datasets: Names of the data set, in lower case, without signs; under others it is measured with a remark.
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
        items = super().gallery(collection)
        if self.images is None and self.captions is None:
            return collection  # an image without captions is still a wrong answer to captions
        if self.images is not None and len(items) != self.images:
            raise InputError(
                f"Protocol {self.name} is defined on {self.images} images; {collection.name} has {len(items)} with "
                "captions here. Check --split, or measure with --protocol pairs, whose stamp says what it was."
            )
        return items if self.captions is None else items.with_captions(self.captions, f"Protocol {self.name}")

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        gallery, owners = task.gallery, task.gallery.caption_items
        if len(gallery) % self.folds:
            raise InputError(
                f"{len(gallery)} images cannot be divided into {self.folds} folds of one size: metrics of galleries of "
                "different sizes have no mean. Choose another number of folds."
            )
        letters = "".join(sign for sign in gallery.name.lower() if sign.isalnum())
        is_known = not self.datasets or any(known in letters for known in self.datasets)
        remarks = () if is_known else (f"NOT KNOWN TO BE {self.datasets[0].upper()}",)
        stamp = task.stamp(self.name, folds=self.folds, remarks=remarks)
        rank_whole = self.folds == 1 or self.whole
        keep = max(task.keep, metrics.DEPTH) if rank_whole else 0
        how: dict[str, Any] = {"folds": self.folds, "whole": rank_whole, "keep": keep, "progress": task.progress}
        if task.rescoring is None:
            whole, folds = rank_bidirectional(task.subject.scores, owners, **how)
        elif self.folds > 1:
            raise InputError(f"Re-scoring with {self.folds} folds would use queries of others. Leave --rescore out.")
        else:
            both = task.rescoring.both_ways(task.subject.scores)
            forward, backward = (rank_bidirectional(part, owners, **how)[0] for part in both)
            whole, folds = {"i2t": forward["i2t"], "t2i": backward["t2i"]}, []
        parts = folds or [whole]
        values = [metrics.bidirectional_metrics(each) for each in parts]
        result: dict[str, Any] = metrics.mean_over_folds(values) if folds else values[0]
        if folds and whole:
            result["whole"] = metrics.bidirectional_metrics(whole)
        return ProtocolResult(stamp, result, per_query_metrics(parts, owners), whole)


@register
@dataclass(frozen=True)
class VideoProtocol(Protocol):
    """Captions find their videos and videos their captions, as HGR measures on MSR-VTT, TGIF and VATEX.

    Equal captions are merged; one that belongs to several videos is right for each of them, and all of them for it.
    """

    name: str = "video"
    about: str = "video and text: unique captions, several per video, as HGR measures"
    split: str | None = "test"

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        texts = SearchedTexts(task.gallery, unique=True)
        rankings = task.rank(texts.relevance, task.directed_scores(texts.kept), keep=metrics.DEPTH)
        stamp = task.stamp(self.name, texts=len(texts.kept), remarks=("unique captions",))
        per_query = per_query_metrics([rankings], texts.owners)
        return ProtocolResult(stamp, metrics.bidirectional_metrics(rankings), per_query, texts.expand(rankings))


class SearchedTexts:
    """The captions of a collection that are searched: all, or each distinct one once.

    Attributes:
        captions: How many captions there are.
        kept: (U,) positions of those that are searched, ascending: the first stands for all that read the same.
        owners: (U,) the item of each, the first if it has several.
        relevance: By direction, which of the kept ones are right for each item, and the items that are right for them.
    """

    def __init__(self, gallery: Collection, *, unique: bool) -> None:
        """unique: merge captions that are equal character by character."""
        captions, owners = gallery.captions, gallery.caption_items
        number = kept = np.arange(len(captions))
        if unique:
            numbers: dict[str, int] = {}
            number = np.array([numbers.setdefault(caption, len(numbers)) for caption in captions], dtype=np.int64)
            kept = np.unique(number, return_index=True)[1]
        i2t = Relevance.from_pairs(owners, number, (len(gallery), len(kept)))
        self.captions, self.kept, self.owners = len(captions), kept, owners[kept]
        self.relevance = {"i2t": i2t, "t2i": i2t.transpose()}

    def expand(self, rankings: Mapping[str, Ranking]) -> dict[str, Ranking]:
        """The rankings with texts numbered as in the collection; those that were merged away are not queries."""
        i2t, t2i = rankings["i2t"], rankings["t2i"]
        shape = (len(i2t.relevance), self.captions)
        right = Relevance.from_pairs(i2t.relevance.queries, self.kept[i2t.relevance.positives], shape)
        answers, top = copy(cast(TopK, i2t.top)), cast(TopK, t2i.top)
        answers.ids = np.where(answers.ids < 0, -1, self.kept[answers.ids])
        queries = TopK(self.captions, top.k)
        queries.values[self.kept], queries.ids[self.kept] = top.values, top.ids
        return {"i2t": Ranking(right, i2t.ranks, answers), "t2i": Ranking(right.transpose(), t2i.ranks, queries)}


def _five_captions(name: str, about: str, images: int, *datasets: str, folds: int = 1) -> PairsProtocol:
    return PairsProtocol(name, f"{about}, five captions each", "test", images, 5, folds, datasets=datasets)


register(
    _five_captions("f8k-1k", "Flickr8k: 1,000 test images", 1000, "flickr8k", "f8k"),
    _five_captions("f30k-1k", "Flickr30K: 1,000 test images", 1000, "flickr30k", "f30k"),
    _five_captions("coco-5k", "COCO: all 5,000 test images", 5000, "coco"),
    _five_captions(
        "coco-1k-5fold", "COCO: mean over five consecutive blocks of 1,000 test images", 5000, "coco", folds=5
    ),
    PairsProtocol("pairs", "any collection, any number of captions per image", "any"),
)
