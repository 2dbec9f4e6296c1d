"""What is mixed up with what: wrong first answers, split as the supplement of label-wise semantic sharing does.

There, failures are put down to super-class confusion (vegetables for fruit) and semantic confusion (traffic lights for
traffic signs: what is seen together is hard to tell apart). It gives examples, and no rule; the rules here are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from polysem.data.collection import Collection
from polysem.evaluation.ranking import Ranking
from polysem.inspection.diagnose.caption_objects import Names

Kind = Literal["fits too", "super-class", "semantic", "unrelated"]
KINDS: dict[Kind, str] = {
    "fits too": "the picture shows everything that the text names: by its labels it is no mistake",
    "super-class": "what the text names is not there, but its like of the same group: a pear for an apple",
    "semantic": "part of what the text names is there, the rest is something of another kind",
    "unrelated": "nothing that the text names is there, nor anything like it",
}
SHOWN = 12


@dataclass(frozen=True)
class Swap:
    """says: a label that the text names and the picture lacks. shows: one of the picture that the text does not name.
    together: the share of items with the former that also have the latter."""

    says: str
    shows: str
    kind: Kind
    times: int
    together: float


@dataclass(frozen=True)
class Confusions:
    """Wrong first answers of one direction. wrong: how many. kinds: how many of each kind. swaps: the most frequent."""

    wrong: int
    kinds: Mapping[str, int]
    swaps: tuple[Swap, ...]


def groups_of(items: Collection) -> dict[str, str]:
    """label -> group, as far as boxes tell."""
    return {box.name: box.group for item in items for box in item.boxes if box.group}


def confusions(ranking: Ranking, items: Collection, groups: Mapping[str, str], texts_ask: bool) -> Confusions:
    """groups: the super-class of labels, where known; a label that is a super-class itself is left aside.

    A text stands for the labels it names, or for all of its item's if it names none.
    """
    supers = set(groups.values()) - set(groups)
    labels = [frozenset(item.labels) - supers for item in items]
    captions, owners = items.captions, items.caption_items.tolist()
    names = Names(label for own in labels for label in own)
    seen = Counter(label for own in labels for label in own)
    both = Counter((a, b) for own in labels for a in own for b in own if a != b)
    kinds, swaps, wrong = Counter[Kind](), Counter[tuple[str, str, Kind]](), 0
    first = [] if ranking.top is None else ranking.top.rank()[0][:, 0].tolist()
    for query, answer in enumerate(first):
        text, image = (query, answer) if texts_ask else (answer, query)
        if answer < 0 or ranking.relevance.counts[query] == 0 or owners[text] == image:
            continue
        wrong += 1
        said = names.named(captions[text]) or labels[owners[text]]
        kind, pairs = classify(said, labels[image], groups)
        kinds[kind] += 1
        swaps.update((a, b, "super-class" if _alike(a, b, groups) else "semantic") for a, b in pairs)
    shown = [
        Swap(says, shows, kind, times, both[says, shows] / max(1, seen[says]))
        for (says, shows, kind), times in swaps.most_common(SHOWN)
    ]
    return Confusions(wrong, {kind: kinds[kind] for kind in KINDS}, tuple(shown))


def classify(
    says: frozenset[str], shows: frozenset[str], groups: Mapping[str, str]
) -> tuple[Kind, list[tuple[str, str]]]:
    """The kind of a wrong answer, and what stands in for what."""
    missing, extra = sorted(says - shows), sorted(shows - says)
    if not missing:
        return "fits too", []
    likes = {label: [other for other in extra if _alike(label, other, groups)] for label in missing}
    pairs = [(label, other) for label in missing for other in likes[label] or extra]
    if all(likes.values()):
        return "super-class", pairs
    return ("semantic" if says & shows or any(likes.values()) else "unrelated"), pairs


def _alike(a: str, b: str, groups: Mapping[str, str]) -> bool:
    return a in groups and groups.get(b) == groups[a]
