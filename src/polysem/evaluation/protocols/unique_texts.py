"""Texts that read the same, merged: the first stands for all, and is right for every item that has one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polysem.data.collection import Collection
from polysem.evaluation import metrics
from polysem.evaluation.ranking import BothWays, Progress, Ranking, rank_rows
from polysem.evaluation.relevance import Ints, Relevance
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.score_matrix import Scores
from polysem.evaluation.top_k import Best


@dataclass(frozen=True, eq=False)
class Texts:
    """Which captions of a collection are searched.

    captions: how many there are. kept: (U,) the positions of those that are searched, ascending. owners: (U,) the item
    of each, the first if it has several. i2t: which of the kept ones are right for each item.
    """

    captions: int
    kept: Ints
    owners: Ints
    i2t: Relevance

    @classmethod
    def of(cls, gallery: Collection, *, unique: bool) -> Texts:
        """All captions, or each distinct one once. Captions are equal if all their characters are."""
        captions, owners = gallery.captions, gallery.caption_items
        if unique:
            numbers: dict[str, int] = {}
            number = np.array([numbers.setdefault(caption, len(numbers)) for caption in captions], dtype=np.int64)
            kept = np.unique(number, return_index=True)[1]
        else:
            number = kept = np.arange(len(captions))
        i2t = Relevance.from_pairs(owners, number, (len(gallery), len(kept)))
        return cls(len(captions), kept, owners[kept], i2t)

    def ways(self, scores: Scores, rescoring: Rescoring | None) -> tuple[Scores, Scores]:
        """The scores of the kept texts for images that ask, and for texts that ask: the queries are the rows."""
        if len(self.kept) < self.captions:
            scores = scores.part(None, self.kept)
        forward, backward = (scores, scores) if rescoring is None else rescoring.both_ways(scores)
        return forward, backward.transposed()

    def rank(self, ways: tuple[Scores, Scores], keep: int, progress: Progress | None = None) -> BothWays:
        """keep: as a protocol has it."""
        i2t, t2i, keep = self.i2t, self.i2t.transposed(), max(keep, metrics.DEPTH)
        return BothWays(
            rank_rows(ways[0], i2t, keep=keep, progress=part_of(progress, 0, len(i2t) + len(t2i))),
            rank_rows(ways[1], t2i, keep=keep, progress=part_of(progress, len(i2t), len(i2t) + len(t2i))),
        )

    def among_all(self, found: BothWays) -> dict[str, Ranking]:
        """The rankings with texts numbered as in the collection; those that were merged away ask for nothing."""
        i2t, t2i = found.i2t, found.t2i
        shape = (len(self.i2t), self.captions)
        right = Relevance.from_pairs(i2t.relevance.queries, self.kept[i2t.relevance.positives], shape)
        return {
            "i2t": Ranking(right, i2t.places, None if i2t.best is None else self._answers(i2t.best)),
            "t2i": Ranking(right.transposed(), t2i.places, None if t2i.best is None else self._queries(t2i.best)),
        }

    def _answers(self, best: Best) -> Best:
        renamed = Best(len(best.ids), best.k)
        renamed.values, renamed.ids = best.values, np.where(best.ids < 0, -1, self.kept[best.ids])
        return renamed

    def _queries(self, best: Best) -> Best:
        spread = Best(self.captions, best.k)
        spread.values[self.kept], spread.ids[self.kept] = best.values, best.ids
        return spread


def part_of(progress: Progress | None, first: int, total: int) -> Progress | None:
    """The progress of a part that begins at `first` of `total`."""
    return None if progress is None else lambda done, _: progress(first + done, total)
