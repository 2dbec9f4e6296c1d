"""Protocols: what is searched and what counts as found. Each knows its name and stamps it on its numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from polysem.data.collection import Collection
from polysem.errors import ConfigError, InputError, unknown
from polysem.evaluation.ranking import Ranking
from polysem.evaluation.rescoring import Rescoring
from polysem.evaluation.result import PerQuery
from polysem.evaluation.score_matrix import Scores
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


@dataclass(frozen=True, eq=False)
class Trial:
    """A subject before a gallery: all that a protocol measures with. keep: how many of each query's highest scores to
    keep, for a run file; hubness needs ten in any case."""

    subject: Subject
    gallery: Collection
    split: str
    rescoring: Rescoring | None = None
    keep: int = 0
    progress: Progress | None = None

    def ways(self) -> tuple[Scores, Scores]:
        """The scores for images that ask and for texts that ask: the queries are the rows."""
        scores = self.subject.scores
        straight, across = (scores, scores) if self.rescoring is None else self.rescoring.both_ways(scores)
        return straight, across.transposed()

    def stamp(self, protocol: str, **more: Any) -> Stamp:
        """more: what is not as usual."""
        usual = {
            "images": len(self.gallery),
            "texts": len(self.gallery.captions),
            "scoring": "inductive" if self.rescoring is None else f"transductive: {self.rescoring}",
            "selected_on": self.subject.selected_on,
        }
        return Stamp(protocol, self.gallery.name, self.split, **{**usual, **more})


class Protocol(ABC):
    """One way to measure. A protocol is told the collection when it is made ready, and refuses one that is not its."""

    name: str
    about: str
    """A line for lists."""
    split: str | None = "test"
    """The split to take if none is named; None: all items."""

    @property
    def options(self) -> tuple[str, ...]:
        """Those of its fields that a user may change: what would make it another protocol is not among them."""
        return ()

    def with_options(self, **given: Any) -> Protocol:
        """The same protocol with other options; texts are read as what an option takes."""
        hints, found = get_type_hints(type(self), include_extras=True), {}
        for option, value in given.items():
            if option not in self.options:
                raise unknown(f"option of protocol {self.name}", option, self.options)
            try:
                found[option] = TypeAdapter(hints[option]).validate_python(value)
            except ValidationError as error:
                raise ConfigError(
                    f"Option {option} of protocol {self.name}: {error.errors()[0]['msg']}, got {value!r}."
                ) from None
        return replace(self, **found)  # type: ignore[type-var]

    @abstractmethod
    def gallery(self, collection: Collection) -> Collection:
        """The items to search, with the captions that count; raises if this is not the collection it is meant for."""

    def measure(self, subject: Subject, gallery: Collection, split: str, **how: Any) -> Measured:
        """how: rescoring, keep and progress, as a `Trial` has them."""
        check_shape(subject.scores, len(gallery), len(gallery.captions), gallery.name)
        return self.carry_out(Trial(subject, gallery, split, **how))

    @abstractmethod
    def carry_out(self, trial: Trial) -> Measured:
        """Scores have the gallery's shape."""


def check_shape(scores: Scores, images: int, texts: int, name: str) -> None:
    if scores.shape != (images, texts):
        turned = " It looks transposed." if scores.shape == (texts, images) else ""
        raise InputError(
            f"The scores are {scores.shape[0]} × {scores.shape[1]}, and {name} has {images} images and {texts} "
            f"captions here.{turned} Scores are (images, captions), in the order of the collection; check --split."
        )


def with_captions(collection: Collection) -> Collection:
    """The items that have captions, of which there must be some."""
    kept = [i for i, item in enumerate(collection) if item.captions]
    if not kept:
        raise InputError(f"{collection.name} has no captions: there is nothing to search with.")
    return collection.where(kept)


_REGISTERED: dict[str, Protocol] = {}


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
