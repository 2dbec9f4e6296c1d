"""Captions find their image and images their captions: the protocols of most papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import PositiveInt

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, captioned_items, register
from polysem.evaluation.protocols.helpers import per_query_metrics
from polysem.evaluation.ranking import BidirectionalRanking, rank_bidirectional
from polysem.evaluation.score_matrix import Scores


@dataclass(frozen=True)
class PairsProtocol(Protocol):
    """Captions find their image and images their captions.

    Args:
        images, captions: What the collection must have; None: any.
        folds: Consecutive blocks of equal size, over which metrics are averaged.
        whole: With folds, measure the whole gallery too, under "whole".
        datasets: Names that the data set may have; under another one it is measured with a remark.
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
        items = captioned_items(collection)
        if self.images is None and self.captions is None:
            return collection  # an image without captions is still a wrong answer to captions
        if self.images is not None and len(items) != self.images:
            raise InputError(
                f"Protocol {self.name} is defined on {self.images} images; {collection.name} has {len(items)} with "
                "captions here. Check --split, or measure with --protocol pairs, whose stamp says what it was."
            )
        if self.captions is not None:
            return items.with_captions(self.captions, f"Protocol {self.name}")
        return items

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        gallery, owners = task.gallery, task.gallery.caption_items
        if len(gallery) % self.folds:
            raise InputError(
                f"{len(gallery)} images cannot be divided into {self.folds} folds of one size: metrics of galleries of "
                "different sizes have no mean. Choose another number of folds."
            )
        is_known = not self.datasets or any(_letters(known) in _letters(gallery.name) for known in self.datasets)
        remarks = () if is_known else (f"NOT KNOWN TO BE {self.datasets[0].upper()}",)
        stamp = task.stamp(self.name, folds=self.folds, remarks=remarks)
        rank_whole = self.folds == 1 or self.whole
        keep = max(task.keep, metrics.DEPTH) if rank_whole else 0

        def rank(scores: Scores) -> tuple[BidirectionalRanking | None, list[BidirectionalRanking]]:
            return rank_bidirectional(
                scores, owners, folds=self.folds, whole=rank_whole, keep=keep, progress=task.progress
            )

        if task.rescoring is None:
            whole, folds = rank(task.subject.scores)
        else:
            if self.folds > 1:
                raise InputError(
                    f"Re-scoring with {self.folds} folds would use queries of other folds. "
                    "Leave --rescore out, or take a protocol without folds."
                )
            forward, backward = (rank(part)[0] for part in task.rescoring.both_ways(task.subject.scores))
            whole, folds = BidirectionalRanking(forward.i2t, backward.t2i), []  # type: ignore[union-attr]
        parts = folds or [each for each in (whole,) if each is not None]
        values = [metrics.bidirectional_metrics(each) for each in parts]
        result: dict[str, Any] = metrics.mean_over_folds(values) if folds else values[0]
        if folds and whole is not None:
            result["whole"] = metrics.bidirectional_metrics(whole)
        queries = {
            "i2t": per_query_metrics([part.i2t for part in parts]),
            "t2i": per_query_metrics([part.t2i for part in parts], owners),
        }
        return ProtocolResult(stamp, result, queries, {} if whole is None else {"i2t": whole.i2t, "t2i": whole.t2i})


def _letters(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign.isalnum())


def _five_captions(name: str, about: str, images: int, *datasets: str, folds: int = 1) -> PairsProtocol:
    return PairsProtocol(name, f"{about}, five captions each", "test", images, 5, folds, datasets=datasets)


register(
    _five_captions("f8k-1k", "Flickr8k: 1,000 test images", 1000, "flickr8k", "f8k"),
    _five_captions("f30k-1k", "Flickr30K: 1,000 test images", 1000, "flickr30k", "f30k"),
    _five_captions("coco-5k", "COCO: all 5,000 test images", 5000, "coco"),
    _five_captions(
        "coco-1k-5fold", "COCO: mean over five consecutive blocks of 1,000 test images", 5000, "coco", folds=5
    ),
    PairsProtocol("pairs", "any collection, any number of captions per image"),
)
