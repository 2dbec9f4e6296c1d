"""The protocol of data with labels: an answer is the better, the more labels it shares with the query."""

from __future__ import annotations

import threading
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
from polysem.evaluation.protocols.base import (
    Measured,
    Progress,
    Protocol,
    Trial,
    register,
    with_captions,
)
from polysem.evaluation.protocols.graded import Gains, Values, discounts, graded
from polysem.evaluation.protocols.micro_f1 import micro_f1
from polysem.evaluation.protocols.unique_texts import Texts, part_of
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.relevance import Ints
from polysem.evaluation.result import PerQuery
from polysem.evaluation.score_matrix import Scores
from polysem.evaluation.stamp import Stamp

PAIRS = 1 << 19
"""Scores that are ranked at once."""

Quirk = Literal["flattened-discount"]
_SLOTS = 5


@dataclass(frozen=True)
class Labels(Protocol):
    """NDCG@k, mAP and precision@k by shared labels, and micro-F1 of a model that predicts them.

    The gain of an answer is the number of labels it shares with the query; a caption has its item's. For mAP (of the
    whole ranking) and precision an answer is right if it shares any. A query that shares none with anything counts 0.
    Recalls and ranks are about pairs, as ever. k: of NDCG and precision, at most the size of the gallery.
    unique_texts: merge equal texts, as is done with lists of tags; the first keeps its labels.
    quirk: "flattened-discount" is how the released code of label-wise semantic sharing measures COCO: where texts ask,
    the discount is log2(5 place + slot + 2), slot being the caption's number modulo 5. It flatters.
    """

    name: str
    about: str
    split: str | None = "test"
    k: int = 500
    unique_texts: bool = False
    quirk: Quirk | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return ("k", "unique_texts", "quirk")

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"NDCG@k needs at least one place, got k = {self.k}. The usual one is 500.")
        if self.quirk is not None and self.quirk not in get_args(Quirk):
            raise unknown("quirk", self.quirk, get_args(Quirk))

    def gallery(self, collection: Collection) -> Collection:
        found = with_captions(collection)
        if not found.label_names:
            raise InputError(
                f"{collection.name} has no labels here, and protocol {self.name} measures by shared labels. Give it a "
                "table captions.csv or captions.jsonl with a column `labels`, put COCO's instances_*.json beside its "
                "captions, or take the names of subfolders: --folder-labels (folder_labels=True). Without labels, "
                "measure with --protocol pairs."
            )
        return found

    def carry_out(self, trial: Trial) -> Measured:
        subject, gallery = trial.subject, trial.gallery
        texts, images = Texts.of(gallery, unique=self.unique_texts), np.arange(len(gallery))
        ways, queries = texts.ways(subject.scores, trial.rescoring), len(images) + len(texts.kept)
        ranked = texts.rank(ways, trial.keep, part_of(trial.progress, 0, 2 * queries))
        shared = _Shared(gallery)
        slots = texts.kept % _SLOTS if self.quirk else None
        watch = (
            part_of(trial.progress, queries, 2 * queries),
            part_of(trial.progress, queries + len(images), 2 * queries),
        )
        i2t = self._per_query(ranked.i2t, self._graded(ways[0], shared, images, texts.owners, None, watch[0]))
        t2i = self._per_query(ranked.t2i, self._graded(ways[1], shared, texts.owners, images, slots, watch[1]))
        result: dict[str, Any] = {"i2t": _figures(i2t, ranked.i2t), "t2i": _figures(t2i, ranked.t2i)}
        result = {"rsum": metrics.rsum(result["i2t"], result["t2i"]), **result}
        if subject.predictions:
            result["micro_f1"] = _micro_f1(subject.predictions, gallery)
        return Measured(
            self._stamp(trial, texts),
            result,
            {"i2t": PerQuery(i2t, images), "t2i": PerQuery(t2i, texts.owners)},
            texts.among_all(ranked),
        )

    def _graded(
        self, scores: Scores, shared: _Shared, asking: Ints, asked: Ints, slots: Ints | None, progress: Progress | None
    ) -> dict[str, Values]:
        """asking, asked: the item of each query and of each entry of the gallery."""
        queries, size = scores.shape
        k, rows = min(self.k, size), max(1, PAIRS // size)
        blocks = [slice(first, min(first + rows, queries)) for first in range(0, queries, rows)]
        found: dict[int, dict[str, Values]] = {}
        lock = threading.Lock()

        def one(block: slice) -> None:
            discount = discounts(k) if slots is None else _flattened(k, slots[block])
            tile = scores.checked_tile(block, slice(None))
            values = graded(tile, shared.gains(asking[block], asked), discount)
            with lock:
                found[block.start] = values
                if progress is not None:
                    progress(min(queries, rows * len(found)), queries)

        cpu_blocks.run([partial(one, block) for block in blocks], torch.device("cpu"))
        parts = [found[block.start] for block in blocks]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _per_query(self, ranking: Ranking, values: dict[str, Values]) -> dict[str, Values]:
        by_labels = {f"ndcg{self.k}": values["ndcg"], f"precision{self.k}": values["precision"], "map": values["map"]}
        pairs = metrics.per_query(ranking)
        return {**by_labels, **{f"r{cut}": pairs[f"r{cut}"] for cut in metrics.CUTS}}

    def _stamp(self, trial: Trial, texts: Texts) -> Stamp:
        remarks = ["unique texts"] if self.unique_texts else []
        if self.k > min(len(trial.gallery), len(texts.kept)):
            remarks.append("k capped by the gallery")
        if self.quirk:
            remarks.append(self.quirk)
        return trial.stamp(
            self.name,
            texts=len(texts.kept),
            measure=f"hit rate of pairs, NDCG@{self.k} by shared labels",
            remarks=tuple(remarks),
        )


class _Shared:
    """How many labels two items have in common."""

    def __init__(self, gallery: Collection) -> None:
        number = {label: place for place, label in enumerate(gallery.label_names)}
        self.flags: Tensor = torch.zeros(len(gallery), len(number))
        for row, item in zip(self.flags, gallery, strict=True):
            row[[number[label] for label in item.labels]] = 1.0

    def gains(self, asking: Ints, asked: Ints) -> Gains:
        # Items first: their captions only repeat them.
        items = (self.flags[torch.from_numpy(asking)] @ self.flags.t()).numpy()
        return items.astype(np.uint32)[:, asked]


def _flattened(k: int, slots: Ints) -> Values:
    """(q, k)."""
    return np.asarray(np.log2(_SLOTS * np.arange(k) + slots[:, None] + 2.0), dtype=np.float64)


def _figures(values: dict[str, Values], ranking: Ranking) -> dict[str, Any]:
    pairs = metrics.one_way(ranking)
    found: dict[str, Any] = {name: float(each.mean()) for name, each in values.items()}
    found |= {name: pairs[name] for name in ("median_rank", "mean_rank", "queries", "hubness")}
    alone = int(np.count_nonzero(values["map"] == 0))
    if alone:
        found["queries_without_shared_labels"] = alone
    return found


def _micro_f1(predictions: Mapping[str, Any], gallery: Collection) -> dict[str, float]:
    """predictions: "image" and "text", and "classes" to name their columns; else they are the collection's labels."""
    classes = predictions.get("classes", gallery.label_names)
    labels = {
        "image": [item.labels for item in gallery],
        "text": [gallery[owner].labels for owner in gallery.caption_items],
    }
    return {side: micro_f1(predictions[side], own, classes) for side, own in labels.items() if side in predictions}


register(Labels("labels", "by shared labels: NDCG@500, mAP and precision, and micro-F1 of predicted labels"))
register(Labels("labels-tags", "the same where texts are lists of tags: equal ones are merged", unique_texts=True))
