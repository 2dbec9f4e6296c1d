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
from polysem.evaluation.protocols.annotated import in_turn, per_query, rank_asked, relevance_of, with_lost
from polysem.evaluation.protocols.base import Measured, Protocol, Trial, register
from polysem.evaluation.protocols.coco_ids import match_test
from polysem.evaluation.protocols.eccv_package import EccvPackage
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.result import PerQuery

METRICS = ("map_at_r", "r_precision", "r1")


@dataclass(frozen=True)
class EccvCaption(Protocol):
    """annotations: the folder of the package's data files, where the package is not installed."""

    name: str = "eccv-caption"
    about: str = "COCO test with all right answers that people found: mAP@R, R-Precision, R@1"
    split: str | None = "test"
    annotations: str | Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return ("annotations",)

    def gallery(self, collection: Collection) -> Collection:
        return match_test(collection, EccvPackage.find(self.annotations, self.name).coco_test(), self.name).gallery

    def carry_out(self, trial: Trial) -> Measured:
        gallery = trial.gallery
        package = EccvPackage.find(self.annotations, self.name)
        ids = match_test(gallery, package.coco_test(), self.name)
        annotation = package.annotation("eccv")
        straight, across = trial.ways()
        steps = in_turn(trial.progress, 2)
        found: dict[str, Any] = {}
        queries: dict[str, PerQuery] = {}
        rankings: dict[str, Ranking] = {}
        for way, scores, positives, asked, searched, owners, step in (
            ("i2t", straight, annotation.i2t, ids.images, ids.captions, None, steps[0]),
            ("t2i", across, annotation.t2i, ids.captions, ids.images, gallery.caption_items, steps[1]),
        ):
            relevance, lost = relevance_of(positives, asked, searched, self.name)
            rankings[way] = rank_asked(scores, relevance, keep=trial.keep, progress=step)
            queries[way] = per_query(with_lost(rankings[way], lost), owners, METRICS)
            found[way] = {name: float(np.mean(values)) for name, values in queries[way].values.items()}
            found[way] |= {"queries": len(positives), "positives": sum(len(set(each)) for each in positives.values())}
            if lost.any():
                found[way]["positives_outside_gallery"] = int(lost.sum())
        stamp = trial.stamp(
            self.name,
            measure="annotated positives",
            remarks=ids.remarks,
        )
        return Measured(stamp, found, queries, rankings)


register(EccvCaption())
