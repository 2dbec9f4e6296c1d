"""Queries for parts of pictures ("a dog", "a brown dog"), and which pictures show them: from captions, from the objects
that a data set knows, from its labels, or from a list of one's own."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polysem.data.collection import Collection
from polysem.data.noun_phrases import IDIOMS, NO_THINGS, PLURAL_ONLY, NounPhraseFinder, split_clauses
from polysem.errors import InputError
from polysem.synthetic.scenes.catalogue import choose_article, indefinite_phrase, name_noun

QueryKind = Literal["nouns", "phrases"]
Truth = Literal["captions", "objects", "labels"]
KNOWN = 0.75
"""The share of pictures with objects from which on the others have none."""
KINDS: tuple[QueryKind, ...] = ("nouns", "phrases")
Shown = dict[QueryKind, dict[str, set[int]]]
"""Positions of the pictures that show a thing, by its name."""
CASES = {"fish": ("shark", "pufferfish"), "car": ("taxi", "jeep")}
"""Things that are a case of another one, beyond what their names show."""
_ARTICLE = re.compile(r"\ba \{\}")


@dataclass(frozen=True)
class PartQuery:
    """A query for a part of pictures.

    Args:
        name: What is asked for, in the singular: "dog", "brown dog".
        text: The query itself: "a dog".
        items: Positions of the pictures that show it, ascending.
    """

    kind: QueryKind
    name: str
    text: str
    items: tuple[int, ...]

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def noun(self) -> str:
        """The last word: phrases of one noun are not independent queries."""
        return self.name.rpartition(" ")[2]


def choose_truth(collection: Collection) -> Truth:
    """Exact where the data set knows what its pictures show, all but few of which have objects; else by captions."""
    known = sum(bool(item.boxes) for item in collection)
    return "objects" if known and known >= KNOWN * len(collection) else "captions"


def make_queries(
    collection: Collection,
    truth: Truth,
    prompt: str,
    *,
    least: int,
    share: float,
    most: int | None = None,
    given: Sequence[str] | None = None,
) -> list[PartQuery]:
    """The queries of a collection, nouns first, in alphabetical order.

    Args:
        truth: What tells which pictures show a thing.
        prompt: Of a query, with {} for the name. Its "a" becomes "an", and is left out before what is not counted
            ("grass").
        least, share: Only what at least so many pictures show, and at most this share of them.
        most: How many of each kind, chosen by a hash of their names; None: all.
        given: What to ask for instead, such as "a dog", if only one picture shows it.
    """
    source: CaptionParts | NamedParts = (
        CaptionParts(collection) if truth == "captions" else NamedParts(collection, truth == "objects")
    )
    found = source.find_all() if given is None else source.look_up(given)
    fewest, largest = (least, share * len(collection)) if given is None else (1, len(collection))
    queries: list[PartQuery] = []
    for kind in KINDS:
        shown = {name: items for name, items in found[kind].items() if fewest <= len(items) <= largest}
        names = sorted(shown, key=lambda name: (zlib.crc32(name.encode()), name))[:most]
        queries += [
            PartQuery(kind, name, source.word(name, prompt), tuple(sorted(shown[name]))) for name in sorted(names)
        ]
    return queries


def read_query_list(path: Path) -> list[str]:
    """A query on each line; empty lines and those that begin with # are passed over."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}). Give a text file with a query on each line.") from None
    queries = list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if not queries:
        raise InputError(f"{path} holds no query. Write one on each line, such as: a brown dog.")
    return queries


class CaptionParts:
    """What the captions of a collection name. A picture shows what any of its captions names; plurals are folded."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.finder = NounPhraseFinder(collection.captions)
        self.named: Shown = {kind: defaultdict(set) for kind in KINDS}
        for position, item in enumerate(collection):
            for phrase in (phrase for caption in item.captions for phrase in self.finder.find(caption)):
                self.named["nouns"][phrase.noun].add(position)
                for name in phrase.names:
                    self.named["phrases"][name].add(position)

    def find_all(self) -> Shown:
        return {
            kind: {name: items for name, items in own.items() if name.rpartition(" ")[2] not in NO_THINGS}
            for kind, own in self.named.items()
        }

    def look_up(self, given: Sequence[str]) -> Shown:
        """As a noun or noun phrase of the captions, else as words in a row."""
        shown: Shown = {kind: {} for kind in KINDS}
        for query in given:
            words = self._fold(_drop_article(query))
            name, kind = " ".join(words), KINDS[len(words) > 1]
            known = self.named["nouns"].get(name) or self.named["phrases"].get(name)
            shown[kind][name] = known or {
                position
                for position, item in enumerate(self.collection)
                if any(f" {name} " in f" {' '.join(self._fold(caption))} " for caption in item.captions)
            }
        return shown

    def word(self, name: str, prompt: str) -> str:
        noun = name.rpartition(" ")[2]
        counted = {name, noun} & self.finder.countable or not {name, noun} & self.finder.nouns
        return _fill(prompt, name, f"{choose_article(name)} {name}" if counted else name)

    def _fold(self, text: str) -> list[str]:
        return [self.finder.fold(word) for clause in split_clauses(text) for word in clause]


class NamedParts:
    """What a data set itself says that its pictures show: its objects, with their colours, or its labels. A name also
    stands for its cases: a fir tree is a tree."""

    def __init__(self, collection: Collection, by_objects: bool) -> None:
        own: dict[tuple[str | None, str], set[int]] = defaultdict(set)
        for position, item in enumerate(collection):
            for box in item.boxes if by_objects else ():
                own[None, box.name].add(position)
                if box.colour:
                    own[box.colour, box.name].add(position)
            for label in () if by_objects else item.labels:
                own[None, label].add(position)
        self._parts = {name if colour is None else f"{colour} {name}": (colour, name) for colour, name in own}
        self.named: Shown = {kind: {} for kind in KINDS}
        for part, (colour, name) in self._parts.items():
            cases = [other for own_colour, other in own if own_colour == colour and _is_case(other, name)]
            self.named[KINDS[colour is not None]][part] = set().union(*(own[colour, other] for other in cases))

    def find_all(self) -> Shown:
        return self.named

    def look_up(self, given: Sequence[str]) -> Shown:
        asked = {_drop_article(query).casefold() for query in given}
        return {
            kind: {n: items for n, items in own.items() if n.casefold() in asked} for kind, own in self.named.items()
        }

    def word(self, name: str, prompt: str) -> str:
        colour, noun = self._parts[name]
        bare = name_noun(noun, colour=colour)
        is_plural = " of " not in bare and (bare in PLURAL_ONLY or re.search(r"[^su]s$", bare) is not None)
        return _fill(prompt, bare, bare if is_plural else indefinite_phrase(noun, colour=colour))


def _is_case(name: str, of: str) -> bool:
    is_kind = name.endswith(f" {of}") and name not in IDIOMS
    return name == of or is_kind or name in CASES.get(of, ())


def _drop_article(query: str) -> str:
    return re.sub(r"^(an?|the|some)\s+", "", query.strip(), flags=re.IGNORECASE)


def _fill(prompt: str, name: str, with_article: str) -> str:
    if _ARTICLE.search(prompt):
        return _ARTICLE.sub(lambda _: with_article, prompt)
    return prompt.replace("{}", name)
