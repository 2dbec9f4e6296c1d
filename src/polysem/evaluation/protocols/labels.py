"""Retrieval by shared labels: the more labels an answer shares with the query, the higher its gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from polysem import cpu_blocks
from polysem.data.collection import Collection
from polysem.errors import InputError, unknown
from polysem.evaluation import metrics
from polysem.evaluation.metrics import Gains, Values
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, captioned_items, register
from polysem.evaluation.protocols.helpers import SearchedTexts
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.relevance import Ints
from polysem.evaluation.result import PerQuery, Stamp
from polysem.evaluation.score_matrix import Scores
from polysem.progress import Progress, section, thread_counter

PAIRS = 1 << 19
"""Scores that are ranked at once."""

Quirk = Literal["flattened-discount"]
_SLOTS = 5


@dataclass(frozen=True)
class LabelsProtocol(Protocol):
    """NDCG@k, mAP and precision@k by shared labels, and micro-F1 of a model that predicts them.

    The gain of an answer is the number of labels it shares with the query; a caption has its item's. For mAP (of the
    whole ranking) and precision an answer is right if it shares any. A query that shares none with anything counts 0.
    Recalls and ranks are about pairs, as ever.

    Args:
        k: Of NDCG and precision, at most the size of the gallery.
        unique_texts: Merge equal texts, as is done with lists of tags; the first keeps its labels.
        quirk: "flattened-discount" is how the released code of label-wise semantic sharing measures COCO: for text
            queries the discount is log2(5 rank + slot + 2), slot being the caption's number modulo 5. It flatters.
    """

    name: str
    about: str
    split: str | None = "test"
    k: int = 500
    unique_texts: bool = False
    quirk: Quirk | None = None

    options = ("k", "unique_texts", "quirk")

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"NDCG@k needs k of at least 1, got k = {self.k}. The usual one is 500.")
        if self.quirk is not None and self.quirk not in get_args(Quirk):
            raise unknown("quirk", self.quirk, get_args(Quirk))

    def gallery(self, collection: Collection) -> Collection:
        items = captioned_items(collection)
        if not items.label_names:
            raise InputError(
                f"{collection.name} has no labels here, and protocol {self.name} measures by shared labels. Give it a "
                "table captions.csv or captions.jsonl with a column `labels`, put COCO's instances_*.json beside its "
                "captions, or take the names of subfolders: --folder-labels (folder_labels=True). Without labels, "
                "measure with --protocol pairs."
            )
        return items

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        texts, images = SearchedTexts.of(task.gallery, unique=self.unique_texts), np.arange(len(task.gallery))
        scores = task.directed_scores(texts.scores(task.subject.scores))
        queries, total = len(images) + len(texts.kept), 2 * (len(images) + len(texts.kept))
        rankings = texts.rank(scores, task.keep, section(task.progress, 0, queries, total))
        overlap = _LabelOverlap(task.gallery)
        values, owners = {}, {"i2t": images, "t2i": texts.owners}
        for way, query_items, gallery_items, first in (
            ("i2t", images, texts.owners, queries),
            ("t2i", texts.owners, images, queries + len(images)),
        ):
            slots = texts.kept % _SLOTS if self.quirk and way == "t2i" else None
            progress = section(task.progress, first, len(query_items), total)
            graded = self._graded_metrics(scores[way], overlap, query_items, gallery_items, slots, progress)
            values[way] = self._query_metrics(getattr(rankings, way), graded)
        result: dict[str, Any] = {way: _direction_metrics(values[way], getattr(rankings, way)) for way in values}
        result = {"rsum": metrics.rsum(result["i2t"], result["t2i"]), **result}
        if task.subject.predictions:
            result["micro_f1"] = _micro_f1(task.subject.predictions, task.gallery)
        per_query = {way: PerQuery(values[way], owners[way]) for way in values}
        return ProtocolResult(self._stamp(task, texts), result, per_query, texts.expand(rankings))

    def _graded_metrics(
        self,
        scores: Scores,
        overlap: _LabelOverlap,
        query_items: Ints,
        gallery_items: Ints,
        slots: Ints | None,
        progress: Progress,
    ) -> dict[str, Values]:
        """query_items, gallery_items: the item of each query and of each entry of the gallery."""
        queries, size = scores.shape
        k, rows = min(self.k, size), max(1, PAIRS // size)
        blocks = [slice(first, min(first + rows, queries)) for first in range(0, queries, rows)]
        values: dict[int, dict[str, Values]] = {}
        advance = thread_counter(progress, "ranking", queries)

        def measure_block(block: slice) -> None:
            discount = metrics.discounts(k) if slots is None else _flattened_discounts(k, slots[block])
            tile = scores.checked_tile(block, slice(None))
            values[block.start] = metrics.graded_metrics(
                tile, overlap.gains(query_items[block], gallery_items), discount
            )
            advance(block.stop - block.start)

        cpu_blocks.run([partial(measure_block, block) for block in blocks], torch.device("cpu"))
        parts = [values[block.start] for block in blocks]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _query_metrics(self, ranking: Ranking, graded: dict[str, Values]) -> dict[str, Values]:
        by_labels = {f"ndcg{self.k}": graded["ndcg"], f"precision{self.k}": graded["precision"], "map": graded["map"]}
        pairs = metrics.query_metrics(ranking)
        return {**by_labels, **{f"r{cut}": pairs[f"r{cut}"] for cut in metrics.CUTS}}

    def _stamp(self, task: EvaluationTask, texts: SearchedTexts) -> Stamp:
        remarks = ["unique texts"] if self.unique_texts else []
        if self.k > min(len(task.gallery), len(texts.kept)):
            remarks.append("k capped by the gallery")
        if self.quirk:
            remarks.append(self.quirk)
        measure = f"hit rate of pairs, NDCG@{self.k} by shared labels"
        return task.stamp(self.name, texts=len(texts.kept), measure=measure, remarks=tuple(remarks))


class _LabelOverlap:
    """How many labels two items have in common."""

    def __init__(self, gallery: Collection) -> None:
        number = {label: column for column, label in enumerate(gallery.label_names)}
        self.flags: Tensor = torch.zeros(len(gallery), len(number))
        for row, item in zip(self.flags, gallery, strict=True):
            row[[number[label] for label in item.labels]] = 1.0

    def gains(self, query_items: Ints, gallery_items: Ints) -> Gains:
        # Items first: their captions only repeat them.
        items = (self.flags[torch.from_numpy(query_items)] @ self.flags.t()).numpy()
        return items.astype(np.uint32)[:, gallery_items]


def _flattened_discounts(k: int, slots: Ints) -> Values:
    """(q, k)."""
    return np.asarray(np.log2(_SLOTS * np.arange(k) + slots[:, None] + 2.0), dtype=np.float64)


def _direction_metrics(values: dict[str, Values], ranking: Ranking) -> dict[str, Any]:
    pairs = metrics.direction_metrics(ranking)
    result: dict[str, Any] = {name: float(each.mean()) for name, each in values.items()}
    result |= {name: pairs[name] for name in ("median_rank", "mean_rank", "queries", "hubness")}
    alone = int(np.count_nonzero(values["map"] == 0))
    if alone:
        result["queries_without_shared_labels"] = alone
    return result


def _micro_f1(predictions: Mapping[str, Any], gallery: Collection) -> dict[str, float]:
    """predictions: "image" and "text", and "classes" to name their columns; else they are the collection's labels."""
    classes = predictions.get("classes", gallery.label_names)
    labels = {
        "image": [item.labels for item in gallery],
        "text": [gallery[owner].labels for owner in gallery.caption_items],
    }
    return {
        side: metrics.micro_f1(predictions[side], own, classes) for side, own in labels.items() if side in predictions
    }


register(
    LabelsProtocol("labels", "by shared labels: NDCG@500, mAP and precision, and micro-F1 of predicted labels"),
    LabelsProtocol("labels-tags", "the same where texts are lists of tags: equal ones are merged", unique_texts=True),
)
