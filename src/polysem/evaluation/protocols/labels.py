"""Retrieval by shared labels: the more labels an answer shares with the query, the higher its gain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from polysem import cpu_blocks
from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.metrics import Values
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, register
from polysem.evaluation.protocols.pairs import SearchedTexts
from polysem.evaluation.result import PerQuery
from polysem.evaluation.score_matrix import Ints, Scores
from polysem.progress import Progress, section, thread_counter

PAIRS = 1 << 19
"""Scores that are ranked at once."""

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
    k: PositiveInt = 500
    unique_texts: bool = False
    quirk: Literal["flattened-discount"] | None = None

    options = ("k", "unique_texts", "quirk")

    def gallery(self, collection: Collection) -> Collection:
        items = super().gallery(collection)
        if not items.label_names:
            raise InputError(
                f"{collection.name} has no labels here, and protocol {self.name} measures by shared labels. Give it "
                "captions.csv or .jsonl with a column `labels`, put COCO's instances_*.json beside its captions or use "
                "the names of subfolders: --folder-labels (folder_labels=True). Else measure with --protocol pairs."
            )
        return items

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        texts, images = SearchedTexts(task.gallery, unique=self.unique_texts), np.arange(len(task.gallery))
        scores = task.directed_scores(texts.kept)
        done = len(images) + len(texts.kept)
        total = 2 * done
        half = replace(task, progress=section(task.progress, 0, done, total))
        rankings = half.rank(texts.relevance, scores, keep=metrics.DEPTH)
        number = {label: column for column, label in enumerate(task.gallery.label_names)}
        flags = torch.zeros(len(images), len(number))
        for row, item in zip(flags, task.gallery, strict=True):
            row[[number[label] for label in item.labels]] = 1.0
        result: dict[str, Any] = {}
        per_query: dict[str, PerQuery] = {}
        for way, queries, answers in (("i2t", images, texts.owners), ("t2i", texts.owners, images)):
            slots = texts.kept % _SLOTS if self.quirk and way == "t2i" else None
            progress = section(task.progress, done, len(queries), total)
            values = self._graded_metrics(scores[way], flags, queries, answers, slots, progress)
            done += len(queries)
            hits, pairs = metrics.query_metrics(rankings[way]), metrics.direction_metrics(rankings[way])
            values |= {f"r{cut}": hits[f"r{cut}"] for cut in metrics.CUTS}
            per_query[way] = PerQuery(values, queries)
            result[way] = {name: float(each.mean()) for name, each in values.items()}
            result[way] |= {name: pairs[name] for name in ("median_rank", "mean_rank", "queries", "hubness")}
            if alone := int(np.count_nonzero(values["map"] == 0)):
                result[way]["queries_without_shared_labels"] = alone
        result = metrics.add_rsum(result)
        if predictions := task.subject.predictions:
            classes = predictions.get("classes", task.gallery.label_names)  # they name the columns
            labels = {"image": [item.labels for item in task.gallery]}
            labels["text"] = [labels["image"][owner] for owner in task.gallery.caption_items]
            result["micro_f1"] = {
                side: metrics.micro_f1(predictions[side], own, classes)
                for side, own in labels.items()
                if side in predictions
            }
        remarks = ["unique texts"] if self.unique_texts else []
        if self.k > min(len(images), len(texts.kept)):
            remarks.append("k capped by the gallery")
        if self.quirk:
            remarks.append(self.quirk)
        measure = f"hit rate of pairs, NDCG@{self.k} by shared labels"
        stamp = task.stamp(self.name, texts=len(texts.kept), measure=measure, remarks=tuple(remarks))
        return ProtocolResult(stamp, result, per_query, texts.expand(rankings))

    def _graded_metrics(
        self, scores: Scores, flags: Tensor, queries: Ints, answers: Ints, slots: Ints | None, progress: Progress
    ) -> dict[str, Values]:
        """NDCG, precision and mAP of each query. flags: (items, labels). queries, answers: the item of each."""
        k, rows = min(self.k, len(answers)), max(1, PAIRS // len(answers))
        blocks = [slice(first, min(first + rows, len(queries))) for first in range(0, len(queries), rows)]
        values: dict[int, dict[str, Values]] = {}
        advance = thread_counter(progress, "ranking", len(queries))

        def measure_block(block: slice) -> None:
            discount = metrics.discounts(k)
            if slots is not None:
                discount = np.log2(_SLOTS * np.arange(k) + slots[block][:, None] + 2.0)  # (q, k)
            tile = scores.checked_tile(block, slice(None))
            # How many labels are shared, by items first: their captions only repeat them.
            gains = (flags[torch.from_numpy(queries[block])] @ flags.t()).numpy().astype(np.uint32)[:, answers]
            values[block.start] = metrics.graded_metrics(tile, gains, discount)
            advance(block.stop - block.start)

        cpu_blocks.run([partial(measure_block, block) for block in blocks], torch.device("cpu"))
        names = {"ndcg": f"ndcg{self.k}", "precision": f"precision{self.k}", "map": "map"}
        return {new: np.concatenate([values[block.start][name] for block in blocks]) for name, new in names.items()}


register(
    LabelsProtocol("labels", "by shared labels: NDCG@500, mAP and precision, and micro-F1 of predicted labels"),
    LabelsProtocol("labels-tags", "the same where texts are lists of tags: equal ones are merged", unique_texts=True),
)
