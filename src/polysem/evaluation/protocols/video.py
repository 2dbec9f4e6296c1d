"""Video-text retrieval: several captions per video, and a gallery in which each caption occurs once."""

from __future__ import annotations

from dataclasses import dataclass

from polysem.data.collection import Collection
from polysem.evaluation import metrics
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, captioned_items, register
from polysem.evaluation.protocols.helpers import SearchedTexts, per_query_metrics


@dataclass(frozen=True)
class VideoProtocol(Protocol):
    """Captions find their videos and videos their captions, as HGR measures on MSR-VTT, TGIF and VATEX.

    Equal captions are merged; one that belongs to several videos is right for each of them, and all of them for it.
    """

    name: str = "video"
    about: str = "video and text: unique captions, several per video, as HGR measures"
    split: str | None = "test"

    def gallery(self, collection: Collection) -> Collection:
        return captioned_items(collection)

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        texts = SearchedTexts.of(task.gallery, unique=True)
        rankings = texts.rank(task.directed_scores(texts.scores(task.subject.scores)), task.keep, task.progress)
        per_query = {
            "i2t": per_query_metrics([rankings.i2t]),
            "t2i": per_query_metrics([rankings.t2i], texts.owners),
        }
        stamp = task.stamp(self.name, texts=len(texts.kept), remarks=("unique captions",))
        return ProtocolResult(stamp, metrics.bidirectional_metrics(rankings), per_query, texts.expand(rankings))


register(VideoProtocol())
