"""ECCV Caption: COCO's test split with the right answers that its pairs leave out, as people found them.

Chun et al., ECCV Caption (ECCV 2022). 1,261 images and 1,332 captions are queries, over all 25,000 captions and 5,000
images. Two of the annotated captions are not among the 25,000: they count as never found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polysem.data.collection import Collection
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, register
from polysem.evaluation.protocols.coco import EccvCaptionFiles, match_test_split
from polysem.evaluation.protocols.helpers import (
    add_missing_positives,
    per_query_metrics,
    rank_annotated,
    relevance_from_ids,
)
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.result import PerQuery
from polysem.progress import section

METRICS = ("map_at_r", "r_precision", "r1")


@dataclass(frozen=True)
class EccvCaptionProtocol(Protocol):
    """annotations: the folder of the package's data files, where the package is not installed."""

    name: str = "eccv-caption"
    about: str = "COCO test with all right answers that people found: mAP@R, R-Precision, R@1"
    split: str | None = "test"
    annotations: str | Path | None = None

    options = ("annotations",)

    def gallery(self, collection: Collection) -> Collection:
        test = EccvCaptionFiles.find(self.annotations, self.name).read_test_split()
        return match_test_split(collection, test, self.name).gallery

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        files = EccvCaptionFiles.find(self.annotations, self.name)
        ids = match_test_split(task.gallery, files.read_test_split(), self.name)
        annotated, scores = files.read_positives("eccv"), task.directed_scores()
        result: dict[str, Any] = {}
        queries: dict[str, PerQuery] = {}
        rankings: dict[str, Ranking] = {}
        for number, (way, positives, asked, searched, owners) in enumerate(
            (
                ("i2t", annotated.i2t, ids.images, ids.captions, None),
                ("t2i", annotated.t2i, ids.captions, ids.images, task.gallery.caption_items),
            )
        ):
            relevance, missing = relevance_from_ids(positives, asked, searched, self.name)
            progress = section(task.progress, 1000 * number, 1000, 2000)
            rankings[way] = rank_annotated(scores[way], relevance, keep=task.keep, progress=progress)
            queries[way] = per_query_metrics([add_missing_positives(rankings[way], missing)], owners, METRICS)
            result[way] = {name: float(np.mean(values)) for name, values in queries[way].values.items()}
            result[way] |= {"queries": len(positives), "positives": sum(len(set(each)) for each in positives.values())}
            if missing.any():
                result[way]["positives_outside_gallery"] = int(missing.sum())
        stamp = task.stamp(self.name, measure="annotated positives", remarks=ids.remarks)
        return ProtocolResult(stamp, result, queries, rankings)


register(EccvCaptionProtocol())
