"""Queries for parts of pictures, where several meanings matter: "a dog" and "a brown dog" find every picture of one.

Which pictures show a thing is what their captions say, and captions leave things out: a picture may show what none of
its captions names, and finding it counts as a mistake. So the figures compare models on the same queries; they are no
absolute precision. Where the data set knows the objects of its pictures, as emoji scenes and COCO's instances do, the
truth is exact.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from polysem.data import noun_phrases
from polysem.data.collection import Collection
from polysem.errors import ConfigError, InputError
from polysem.evaluation import metrics
from polysem.evaluation.part_queries import KINDS, PartQuery, Truth, choose_truth, make_queries, read_query_list
from polysem.evaluation.protocols.base import EvaluationTask, Protocol, ProtocolResult, register
from polysem.evaluation.ranking import Relevance
from polysem.evaluation.result import PerQuery

DEPTH = 10


@register
@dataclass(frozen=True)
class PartsProtocol(Protocol):
    """mAP and precision@10 of queries for parts, nouns and noun phrases apart, and of those that few pictures show.

    The queries are the nouns ("a dog") and the nouns with what describes them ("a brown dog", "a tennis ball") of the
    collection's own captions; right is every picture any of whose captions names it, plurals included. The captions
    alone tell what is a noun (`polysem.data.noun_phrases`). Intervals and tests resample nouns, not pictures.

    Args:
        least: How many pictures must show what is asked for.
        share: What a larger share of all pictures shows is not asked for.
        most: How many queries of each kind at most, chosen by a hash of their names; 0: all.
        rare: What at most so many pictures show counts as rare.
        prompt: Of a query, with {} for the name.
        queries: A file of queries to ask instead, one on each line.
        truth: "captions", "objects" or "labels"; "auto" takes objects where the data set has them.
        version: Of how nouns are found.
    """

    name: str = "parts"
    about: str = "nouns and noun phrases of captions find every picture of them: mAP and precision@10"
    split: str | None = "any"
    least: PositiveInt = 5
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    most: Annotated[int, Field(ge=0)] = 0
    rare: PositiveInt = 30
    prompt: str = "a {}"
    queries: str | Path | None = None
    truth: Literal["auto", "captions", "objects", "labels"] = "auto"
    version: int = noun_phrases.VERSION

    options = ("least", "share", "most", "rare", "prompt", "queries", "truth")
    asks_captions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt.count("{}") != 1:
            raise ConfigError(f"Option prompt of protocol {self.name} needs {{}} once, got {self.prompt!r}.")

    def gallery(self, collection: Collection) -> Collection:
        """The pictures, each with what it shows as its labels. A query is the caption of the first that shows it."""
        items, truth = self._pictures(collection)
        queries = self.make_queries(items, truth)
        asked: list[list[PartQuery]] = [[] for _ in items]
        shown: list[list[str]] = [[] for _ in items]
        for query in queries:
            asked[query.items[0]].append(query)
            for position in query.items:
                shown[position].append(query.id)
        pictures = [
            replace(
                item,
                captions=tuple(query.text for query in own),
                caption_ids=tuple(query.id for query in own),
                labels=tuple(labels),
            )
            for item, own, labels in zip(items, asked, shown, strict=True)
        ]
        return replace(items, items=pictures)

    def make_queries(self, items: Collection, truth: Truth) -> list[PartQuery]:
        given = None if self.queries is None else read_query_list(Path(self.queries).expanduser())
        limits: dict[str, Any] = {"least": self.least, "share": self.share, "most": self.most or None}
        queries = make_queries(items, truth, self.prompt, given=given, **limits)
        if not queries:
            where = {"captions": "captions name", "objects": "objects are", "labels": "labels are"}[truth]
            wanted = f"of {self.queries}" if given is not None else f"in {self.least} pictures or more"
            remedy = (
                "Write other queries there."
                if given is not None
                else "Captions must be English. Take more pictures, --option least=1, or a list of your own: "
                "--option queries=FILE."
            )
            raise InputError(
                f"There is nothing to ask for: no noun {wanted} that the {where}, among the {len(items)} pictures of "
                f"{items.name} here. {remedy}"
            )
        return queries

    def compute(self, task: EvaluationTask) -> ProtocolResult:
        gallery = task.gallery
        ids = [each for item in gallery for each in item.caption_ids]
        number = {each: query for query, each in enumerate(ids)}
        pairs = [(number[label], position) for position, item in enumerate(gallery) for label in item.labels]
        shape = (len(ids), len(gallery))
        right = Relevance.from_pairs([query for query, _ in pairs], [picture for _, picture in pairs], shape)
        ranking = task.rank({"t2i": right}, {"t2i": task.directed_scores()["t2i"]})["t2i"]
        each_query = metrics.query_metrics(ranking)
        values = {"map": each_query["map"], f"precision{DEPTH}": each_query["recall10"] * right.counts / DEPTH}
        nouns = np.unique([each.rpartition("/")[2].rpartition(" ")[2] for each in ids], return_inverse=True)[1]
        result: dict[str, Any] = {}
        per_query: dict[str, PerQuery] = {}
        for kind in KINDS:
            own = np.array([each.startswith(f"{kind}/") for each in ids])
            for group, chosen in ((kind, own), (f"rare_{kind}", own & (right.counts <= self.rare))):
                if chosen.any():
                    per_query[group] = PerQuery({name: each[chosen] for name, each in values.items()}, nouns[chosen])
                    result[group] = {name: float(each[chosen].mean()) for name, each in values.items()}
                    result[group] |= {
                        "queries": int(chosen.sum()),
                        "positives": float(right.counts[chosen].mean()),
                    }
        how = {"measure": f"mAP and precision@{DEPTH}", "resampled": "nouns", "remarks": self._remarks(task)}
        stamp = task.stamp(self.name, texts=len(ids), **how)
        return ProtocolResult(stamp, result, per_query, {"t2i": ranking})

    def _remarks(self, task: EvaluationTask) -> tuple[str, ...]:
        """How the queries were made. Queries and truths that differ have stamps that differ."""
        ids = [each for item in task.gallery for each in item.caption_ids]
        counts = " and ".join(f"{sum(each.startswith(f'{kind}/') for each in ids)} {kind}" for kind in KINDS)
        truth = self._truth(task.gallery)
        content = hashlib.sha256()
        for item in task.gallery:
            content.update("\0".join([item.id, *item.captions, "", *item.labels]).encode() + b"\n")
        if self.queries is None:
            found = f"in {self.least} pictures or more and at most {100 * self.share:g} % of them"
        else:
            lost = len(read_query_list(Path(self.queries).expanduser())) - len(ids)
            found = f"of {Path(self.queries).name}" + (f", {lost} that no picture shows left out" if lost else "")
        chosen = f", {self.most} of each at most" if self.most else ""
        version = f" (noun phrases v{self.version})" if truth == "captions" else ""
        return (
            f"{counts} {found}{chosen}",
            f"truth by {truth}{version}",
            f'asked as "{self.prompt}"',
            f"rare: {self.rare} pictures or fewer",
            f"queries {content.hexdigest()[:8]}",
        )

    def _truth(self, collection: Collection) -> Truth:
        return choose_truth(collection) if self.truth == "auto" else self.truth

    def _pictures(self, collection: Collection) -> tuple[Collection, Truth]:
        truth = self._truth(collection)
        if truth == "captions":
            return super().gallery(collection), truth
        if not any(item.boxes if truth == "objects" else item.labels for item in collection):
            raise InputError(
                f"{collection.name} has no {truth} here, which --option truth={truth} asks for. Leave it out, or take "
                "--option truth=captions."
            )
        return collection, truth
