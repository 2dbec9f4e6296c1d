"""The protocol of video and text: several captions per video, and a gallery in which each caption stands once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polysem.data.collection import Collection
from polysem.evaluation import metrics
from polysem.evaluation.protocols.base import (
    Measured,
    Protocol,
    Trial,
    register,
    with_captions,
)
from polysem.evaluation.protocols.unique_texts import Texts
from polysem.evaluation.result import PerQuery


@dataclass(frozen=True)
class Video(Protocol):
    """Captions find their videos and videos their captions, as HGR measures on MSR-VTT, TGIF and VATEX.

    Equal captions are merged; one that belongs to several videos is right for each of them, and all of them for it.
    """

    name: str
    about: str
    split: str | None = "test"

    def gallery(self, collection: Collection) -> Collection:
        return with_captions(collection)

    def carry_out(self, trial: Trial) -> Measured:
        subject, gallery = trial.subject, trial.gallery
        texts = Texts.of(gallery, unique=True)
        stamp = trial.stamp(
            self.name,
            texts=len(texts.kept),
            remarks=("unique captions",),
        )
        found = texts.rank(texts.ways(subject.scores, trial.rescoring), trial.keep, trial.progress)
        per_query = {
            "i2t": PerQuery(metrics.per_query(found.i2t), np.arange(len(gallery))),
            "t2i": PerQuery(metrics.per_query(found.t2i), texts.owners),
        }
        return Measured(stamp, metrics.both_ways(found), per_query, texts.among_all(found))


register(Video("video", "video and text: unique captions, several per video, as HGR measures"))
