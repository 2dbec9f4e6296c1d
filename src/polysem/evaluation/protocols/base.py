"""The base class of protocols, what they are given and what they return, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from polysem.data.collection import Collection
from polysem.errors import ConfigError, InputError, unknown
from polysem.evaluation import metrics
from polysem.evaluation.ranking import Ranking, Relevance, rank_rows
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.result import PerQuery, Stamp
from polysem.evaluation.score_matrix import Ints, Scores
from polysem.plugins import load_plugins, require_free_name, unknown_part
from polysem.progress import Progress, ignore, section
from polysem.registry import Knob, PartInfo, type_name


@dataclass(frozen=True, eq=False)
class ModelScores:
    """What is measured: a model's scores of a gallery.

    Args:
        scores: Of every item with every caption.
        within: The same among images ("image") and among captions ("text"), where embeddings are at hand.
        predictions: Class probabilities by side, of a model that classifies.
        facts: Of the model, for tables.
        selected_on: The split that chose the checkpoint.
    """

    name: str
    scores: Scores
    within: Mapping[str, Scores] = field(default_factory=dict)
    predictions: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    selected_on: str = "unknown"


@dataclass(frozen=True, eq=False)
class ProtocolResult:
    """What a protocol measured; `evaluate` adds the model's name and intervals."""

    stamp: Stamp
    metrics: Mapping[str, Any]
    per_query: Mapping[str, PerQuery]
    rankings: Mapping[str, Ranking] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class EvaluationTask:
    """All that a protocol measures with: scores of the gallery's shape, what the stamp calls the split, and how many of
    each query's highest scores to keep, for a run file."""

    subject: ModelScores
    gallery: Collection
    split: str
    rescoring: Rescoring | None = None
    keep: int = 0
    progress: Progress = ignore

    def directed_scores(self, texts: Ints | None = None) -> dict[str, Scores]:
        """The scores for image queries ("i2t") and for text queries ("t2i"); queries are the rows. texts: those to
        search; None: all."""
        scores = self.subject.scores
        if texts is not None and len(texts) < scores.shape[1]:
            scores = scores.subset(None, texts)
        forward, backward = (scores, scores) if self.rescoring is None else self.rescoring.both_ways(scores)
        return {"i2t": forward, "t2i": backward.transpose()}

    def rank(
        self, relevance: Mapping[str, Relevance], scores: Mapping[str, Scores], *, keep: int = 0
    ) -> dict[str, Ranking]:
        """The ranking of each direction. keep: how many of each query's highest scores to keep at least."""
        rankings: dict[str, Ranking] = {}
        total, done = sum(len(right) for right in relevance.values()), 0
        for way, right in relevance.items():
            progress = section(self.progress, done, len(right), total)
            rankings[way] = rank_rows(scores[way], right, keep=max(keep, self.keep), progress=progress)
            done += len(right)
        return rankings

    def stamp(self, protocol: str, **more: Any) -> Stamp:
        """more: fields that differ from the usual."""
        usual = {
            "images": len(self.gallery),
            "texts": len(self.gallery.captions),
            "scoring": "inductive" if self.rescoring is None else f"transductive: {self.rescoring}",
            "selected_on": self.subject.selected_on,
        }
        return Stamp(protocol, self.gallery.name, self.split, **{**usual, **more})


def per_query_metrics(
    folds: Sequence[Mapping[str, Ranking]], owners: Ints, names: Sequence[str] | None = None
) -> dict[str, PerQuery]:
    """The metrics of every query that has a right answer, by direction; those of several folds follow each other.
    owners: the image of each text. names: the metrics to keep; None: all."""
    per_query = {}
    for way in folds[0]:
        values = [metrics.query_metrics(fold[way]) for fold in folds]
        queries = np.flatnonzero(np.concatenate([fold[way].relevance.counts for fold in folds]))
        joined = {name: np.concatenate([each[name] for each in values]) for name in names or values[0]}
        per_query[way] = PerQuery(joined, owners[queries] if way.startswith("t") else queries)
    return per_query


class Protocol(ABC):
    """One way to measure retrieval. To add one: a frozen dataclass in a new file of this folder, decorated
    with `register`. `gallery` refuses a collection that the protocol is not defined on."""

    name: str
    about: str
    """A line for lists."""
    split: str | None = "test"
    """The split to take if none is named; "any": the test split, or else what there is; None: all items."""
    asks_captions: ClassVar[bool] = True
    """Whether its texts are the collection's captions, which may have stored features, or queries of its own."""

    @property
    def options(self) -> tuple[str, ...]:
        """Fields that a user may change: what would make it another protocol is not among them."""
        return ()

    def __post_init__(self) -> None:
        """Check the options; strings are parsed as the option's type."""
        hints = get_type_hints(type(self), include_extras=True)
        for option in self.options:
            value = getattr(self, option)
            try:
                object.__setattr__(self, option, TypeAdapter(hints[option]).validate_python(value))
            except ValidationError as error:
                problem = error.errors()[0]["msg"]
                raise ConfigError(f"Option {option} of protocol {self.name}: {problem}, got {value!r}.") from None

    def with_options(self, **values: Any) -> Protocol:
        """The same protocol with other options.

        Example:
            >>> find("labels").with_options(k="50").k
            50
        """
        for option in values:
            if option not in self.options:
                raise unknown(f"option of protocol {self.name}", option, self.options)
        return replace(self, **values)  # type: ignore[type-var]

    def gallery(self, collection: Collection) -> Collection:
        """The items to search, with the captions that count: by default the items that have captions, of which there
        must be some. Raises if the protocol is not defined on them."""
        kept = [i for i, item in enumerate(collection) if item.captions]
        if not kept:
            raise InputError(f"{collection.name} has no captions: there is nothing to search with.")
        return collection.where(kept)

    def measure(self, subject: ModelScores, gallery: Collection, split: str, **how: Any) -> ProtocolResult:
        """Check the shape of the scores and measure. how: rescoring, keep, progress of the `EvaluationTask`."""
        images, texts = len(gallery), len(gallery.captions)
        shape = subject.scores.shape
        if shape != (images, texts):
            turned = " It looks transposed." if shape == (texts, images) else ""
            asked = "captions" if self.asks_captions else "queries"
            raise InputError(
                f"The scores are {shape[0]} × {shape[1]}, and {gallery.name} has {images} images and {texts} "
                f"{asked} here.{turned} Scores are (images, {asked}), in the order of the collection; check --split."
            )
        return self.compute(EvaluationTask(subject, gallery, split, **how))

    @abstractmethod
    def compute(self, task: EvaluationTask) -> ProtocolResult:
        """Measure; `measure` has checked the shape of the scores."""


_REGISTERED: dict[str, Protocol] = {}
Registered = TypeVar("Registered", bound=type[Protocol] | Protocol)


def register(first: Registered, *more: Protocol) -> Registered:
    """Class decorator: register the protocol with its default fields. Or a call with instances that differ in them."""
    for protocol in (first() if isinstance(first, type) else first, *more):
        require_free_name("protocol", protocol.name, protocol, _REGISTERED.get(protocol.name, protocol))
        _REGISTERED[protocol.name] = protocol
    return first


def catalogue() -> dict[str, Protocol]:
    """All protocols by name, those of installed packages included."""
    load_plugins()
    return dict(_REGISTERED)


def names() -> tuple[str, ...]:
    return tuple(sorted(catalogue()))


def describe(name: str) -> PartInfo:
    """A protocol's summary and its options."""
    protocol = find(name)
    hints = get_type_hints(type(protocol), include_extras=True)
    options = (Knob(each, type_name(hints[each]), repr(getattr(protocol, each))) for each in protocol.options)
    return PartInfo(name, protocol.about, tuple(options))


def find(name: str) -> Protocol:
    if name not in (known := catalogue()):
        raise unknown_part("protocol", name, known)
    return known[name]
