"""Protocols: what is searched and what counts as found. Each knows its name and stamps it on its numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from polysem.data.collection import Collection
from polysem.errors import InputError, unknown
from polysem.evaluation import metrics
from polysem.evaluation.ranking import BothWays, Ranking, rank_both_ways
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.result import PerQuery
from polysem.evaluation.sources import Scores
from polysem.evaluation.stamp import Stamp

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Subject:
    """What is measured.

    scores: every item of the collection with every caption. within: the same among images ("image") and among captions
    ("text"), where embeddings are at hand. predictions: class probabilities by side, where the model classifies.
    """

    name: str
    scores: Scores
    within: Mapping[str, Scores] = field(default_factory=dict)
    predictions: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    selected_on: str = "unknown"


@dataclass(frozen=True, eq=False)
class Measured:
    """What a protocol found; `evaluate` adds whose it is."""

    stamp: Stamp
    metrics: Mapping[str, Any]
    per_query: Mapping[str, PerQuery]
    rankings: Mapping[str, Ranking] = field(default_factory=dict)


class Protocol(ABC):
    """One way to measure. A protocol is told the collection when it is made ready, and refuses one that is not its."""

    name: str
    about: str
    """A line for lists."""
    split: str | None = "test"
    """The split to take if none is named; None: all items."""

    def with_options(self, **given: Any) -> Protocol:
        """The same protocol with other options: those of its fields that have a default, but not its name."""
        known = [each.name for each in fields(self) if each.name not in ("name", "about", "split")]  # type: ignore[arg-type]
        for option in given:
            if option not in known:
                raise unknown(f"option of protocol {self.name}", option, known)
        return replace(self, **given)  # type: ignore[type-var]

    @abstractmethod
    def gallery(self, collection: Collection) -> Collection:
        """The items to search, with the captions that count; raises if this is not the collection it is meant for."""

    @abstractmethod
    def measure(
        self,
        subject: Subject,
        gallery: Collection,
        split: str,
        *,
        rescoring: Rescoring | None = None,
        keep: int = 0,
        progress: Progress | None = None,
    ) -> Measured:
        """keep: how many of each query's highest scores to keep, for a run file; hubness needs ten in any case."""


@dataclass(frozen=True)
class Pairs(Protocol):
    """Captions find their image and images their captions.

    images, captions: what the collection must have; None: any. folds: consecutive blocks of equal size.
    whole: measure the whole gallery too (under "whole") when there are folds.
    """

    name: str
    about: str
    split: str | None = "test"
    images: int | None = None
    captions: int | None = None
    folds: int = 1
    whole: bool = False

    def gallery(self, collection: Collection) -> Collection:
        kept = [i for i, item in enumerate(collection) if item.captions]
        if not kept:
            raise InputError(f"{collection.name} has no captions: there is nothing to search with.")
        if self.images is not None and len(kept) != self.images:
            raise InputError(
                f"Protocol {self.name} is defined on {self.images} images; {collection.name} has {len(kept)} with "
                "captions here. Check --split, or measure with --protocol pairs, whose stamp says what it was."
            )
        if self.captions is not None:
            return collection.where(kept).with_captions(self.captions, f"Protocol {self.name}")
        return collection.where(kept)

    def measure(
        self,
        subject: Subject,
        gallery: Collection,
        split: str,
        *,
        rescoring: Rescoring | None = None,
        keep: int = 0,
        progress: Progress | None = None,
    ) -> Measured:
        owners = gallery.caption_items
        check_shape(subject.scores, len(gallery), len(owners), gallery.name)
        if self.folds > len(gallery):
            raise InputError(f"{len(gallery)} images cannot be divided into {self.folds} folds.")
        stamp = Stamp(
            self.name,
            gallery.name,
            split,
            len(gallery),
            len(owners),
            folds=self.folds,
            scoring="inductive" if rescoring is None else f"transductive: {rescoring}",
            selected_on=subject.selected_on,
        )
        kept = max(keep, metrics.DEPTH)
        whole = self.folds == 1 or self.whole

        def rank(scores: Scores) -> tuple[BothWays | None, list[BothWays]]:
            return rank_both_ways(
                scores, owners, folds=self.folds, whole=whole, keep=kept if whole else 0, progress=progress
            )

        if rescoring is None:
            found, folds = rank(subject.scores)
        else:
            if self.folds > 1:
                raise InputError(
                    f"Re-scoring with {self.folds} folds would let queries of other folds have a say. "
                    "Leave --rescore out, or take a protocol without folds."
                )
            forward, backward = (rank(part)[0] for part in rescoring.both_ways(subject.scores))
            found, folds = BothWays(forward.i2t, backward.t2i), []  # type: ignore[union-attr]
        parts = folds or [each for each in (found,) if each is not None]
        values = [metrics.both_ways(each) for each in parts]
        result: dict[str, Any] = metrics.mean_of(values) if folds else values[0]
        if folds and found is not None:
            result["whole"] = metrics.both_ways(found)
        queries = {"i2t": _per_query([p.i2t for p in parts], None), "t2i": _per_query([p.t2i for p in parts], owners)}
        rankings = {} if found is None else {"i2t": found.i2t, "t2i": found.t2i}
        return Measured(stamp, result, queries, rankings)


def _per_query(rankings: list[Ranking], owners: Any) -> PerQuery:
    """The queries of all folds one after the other. owners: the image of each text, for queries that are texts."""
    values = [metrics.per_query(ranking) for ranking in rankings]
    clusters, first = [], 0
    for ranking in rankings:
        clusters.append(first + np.flatnonzero(ranking.relevance.counts > 0))
        first += len(ranking.relevance)
    queries = np.concatenate(clusters)
    joined = {name: np.concatenate([each[name] for each in values]) for name in values[0]}
    return PerQuery(joined, queries if owners is None else np.asarray(owners)[queries])


def check_shape(scores: Scores, images: int, texts: int, name: str) -> None:
    if scores.shape != (images, texts):
        turned = " It looks transposed." if scores.shape == (texts, images) else ""
        raise InputError(
            f"The scores are {scores.shape[0]} × {scores.shape[1]}, and {name} has {images} images and {texts} "
            f"captions here.{turned} Scores are (images, captions), in the order of the collection; check --split."
        )


_REGISTERED: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Pairs("f8k-1k", "Flickr8k: 1,000 test images, five captions each", images=1000, captions=5),
        Pairs("f30k-1k", "Flickr30K: 1,000 test images, five captions each", images=1000, captions=5),
        Pairs("coco-5k", "COCO: all 5,000 test images, five captions each", images=5000, captions=5),
        Pairs(
            "coco-1k-5fold",
            "COCO: mean over five consecutive blocks of 1,000 test images, five captions each",
            images=5000,
            captions=5,
            folds=5,
        ),
        Pairs("pairs", "any collection, any number of captions per image"),
    )
}


def register(protocol: Protocol) -> Protocol:
    _REGISTERED[protocol.name] = protocol
    return protocol


def catalogue() -> dict[str, Protocol]:
    """All protocols by name."""
    return dict(_REGISTERED)


def find(name: str) -> Protocol:
    if name not in _REGISTERED:
        raise unknown("protocol", name, _REGISTERED)
    return _REGISTERED[name]
