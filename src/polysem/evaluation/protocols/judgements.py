"""People's judgements of pairs that nobody had paired: graded relevance, and recall without the false negatives.

Hodosh et al., Framing Image Description as a Ranking Task (JAIR 2013), on Flickr8k.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.evaluation import metrics
from polysem.evaluation.protocols.annotated import Values, in_turn, pair_scores, per_query, rank_asked
from polysem.evaluation.protocols.base import (
    Measured,
    Protocol,
    Trial,
    register,
    with_captions,
)
from polysem.evaluation.protocols.judgement_files import NAMES, Judgements, read_judgements
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.relevance import Ints, Relevance
from polysem.evaluation.result import PerQuery

INSIDE = 0.5
"""The share of judged pairs that must be in the gallery: with fewer it is the wrong split or the wrong data set."""


@dataclass(frozen=True)
class Judged(Protocol):
    """Two things. NDCG of each query's judged answers, put in the order of the scores; the gain is the experts' mean
    mark minus 1, or the share of yes. And recall over the whole gallery where pairs judged right (a mean mark of 3 or
    more, or a majority of yes) count like the original pairs; the uncorrected one stands beside it.

    annotations: the file of judgements.
    """

    name: str = "judgements"
    about: str = "Flickr8k with judgements of experts or the crowd: NDCG, and recall without false negatives"
    split: str | None = "test"
    annotations: str | Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return ("annotations",)

    def gallery(self, collection: Collection) -> Collection:
        return with_captions(collection)

    def carry_out(self, trial: Trial) -> Measured:
        gallery = trial.gallery
        owners = gallery.caption_items
        judged = self._read()
        images, texts, inside = _places(judged, gallery, trial.split)
        paired = Relevance.from_pairs(np.arange(len(owners)), owners, (len(owners), len(gallery)))
        right = inside & judged.right
        both = np.concatenate([np.arange(len(owners)), texts[right]]), np.concatenate([owners, images[right]])
        corrected = Relevance.from_pairs(*both, shape=(len(owners), len(gallery)))

        straight, across = trial.ways()
        sources = {"i2t": straight, "t2i": across}
        steps = iter(in_turn(trial.progress, 4))
        found: dict[str, Any] = {}
        queries: dict[str, PerQuery] = {}
        rankings: dict[str, Ranking] = {}
        before: dict[str, Any] = {}
        for way, scores in sources.items():
            turn = Relevance.transposed if way == "i2t" else _same
            rankings[way] = rank_asked(scores, turn(corrected), keep=trial.keep, progress=next(steps))
            before[way] = metrics.one_way(rank_asked(scores, turn(paired), progress=next(steps)))
            found[way] = metrics.one_way(rankings[way])
            queries[way] = per_query(rankings[way], owners if way == "t2i" else None)
        for way, scores in sources.items():
            asking, asked = (images[inside], texts[inside]) if way == "i2t" else (texts[inside], images[inside])
            who, values = ndcg(asking, judged.gains[inside], pair_scores(scores, asking, asked))
            found[f"judged_{way}"] = {
                "ndcg": float(values.mean()) if len(values) else float("nan"),
                "queries": len(who),
            }
            queries[f"judged_{way}"] = PerQuery({"ndcg": values}, who if way == "i2t" else owners[who])
        for each in (found, before):
            each["rsum"] = metrics.rsum(each["i2t"], each["t2i"])
        added = len(corrected.positives) - len(paired.positives)
        remarks = [f"{int(inside.sum())} pairs judged by {judged.who}, {added} of them new positives"]
        if not inside.all():
            remarks.append(f"{int((~inside).sum())} judged pairs outside the gallery left out")
        stamp = trial.stamp(
            self.name,
            measure="hit rate, judged positives added",
            remarks=tuple(remarks),
        )
        return Measured(stamp, {**found, "uncorrected": before}, queries, rankings)

    def _read(self) -> Judgements:
        if self.annotations is None:
            raise InputError(f"Protocol {self.name} needs a file of judgements: --option annotations=FILE, {NAMES}.")
        return read_judgements(Path(self.annotations).expanduser())


def ndcg(queries: Ints, gains: Values, scores: Values) -> tuple[Ints, Values]:
    """The queries whose judged answers differ in gain, and the NDCG of each, in per cent. All are arrays of P pairs.

    Over the judged answers alone, all of them: sum of gain / log2(place + 1), as a share of the largest possible. Of
    equal scores the lower gain stands first. Where all gains are equal, any order is right and nothing is measured.
    """
    order = np.lexsort((gains, -scores, queries))
    queries, gains = queries[order], gains[order]
    asked, found = [], []
    for pairs in np.split(np.arange(len(queries)), np.flatnonzero(np.diff(queries)) + 1):
        own = gains[pairs]
        if len(own) and own.min() < own.max():
            discount = np.log2(np.arange(len(own)) + 2.0)
            asked.append(queries[pairs[0]])
            found.append(100.0 * (own / discount).sum() / (np.sort(own)[::-1] / discount).sum())
    return np.array(asked, dtype=np.int64), np.array(found, dtype=np.float64)


def _same(relevance: Relevance) -> Relevance:
    return relevance


def _places(judged: Judgements, gallery: Collection, split: str) -> tuple[Ints, Ints, np.ndarray]:
    """Positions of each pair's image and caption in the gallery, -1 if not there, and whether both are."""
    place = {Path(name).name: i for i, item in enumerate(gallery) for name in (item.media.name, item.id)}
    counts = np.array([len(item.captions) for item in gallery])
    starts = np.cumsum(counts) - counts
    images = np.array([place.get(name, -1) for name in judged.images])
    owners = np.array([place.get(name, -1) for name, _ in judged.captions])
    numbers = np.array([number for _, number in judged.captions])
    there = (owners >= 0) & (numbers >= 0) & (numbers < counts[owners])
    texts = np.where(there, starts[owners] + numbers, -1)
    inside = (images >= 0) & there
    if inside.mean() < INSIDE:
        lost = int(np.flatnonzero(~inside)[0])
        name, number = judged.captions[lost]
        raise InputError(
            f"{int((~inside).sum())} of {len(inside)} judged pairs are not in the gallery of {gallery.name} {split}, "
            f"e.g. {judged.images[lost]} with {name}#{number}; its first item is {gallery[0].id!r}. Measure the split "
            "that holds them (Flickr8k's judgements are about its test images: --split test), with items named as "
            "Flickr8k names its files."
        )
    return images, texts, inside


register(Judged())
