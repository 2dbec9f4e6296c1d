"""Two searches that a collection can answer, and how well they were answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from polysem.data.collection import Collection, Item
from polysem.search import Index, Results

SHOWN = 3
FAR = 1000
"""How far down a picture is looked for."""
_COMMON = 0.25
"""A label that a larger share of the pictures has is no feat to find."""
GUESSES = ("people outdoors", "an animal")


@dataclass(frozen=True)
class Found:
    """An example search: what was asked, why this and how it went, and the best results."""

    query: str
    why: str
    results: Results


def ask(index: Index, items: Collection) -> list[Found]:
    """A label and a caption, or two captions, of pictures held out from training; guesses where nothing is said."""
    asked = []
    held_out = _held_out(items)
    if any(item.labels for item in held_out):
        asked.append(_by_label(index, held_out))
    captioned = [item for item in held_out if item.captions]
    asked += [_by_caption(index, item) for item in captioned[: len(GUESSES) - len(asked)]]
    for guess in GUESSES[len(asked) :]:
        asked.append(Found(guess, "a guess: nobody has said what is in these pictures", index.search(guess, k=SHOWN)))
    return asked


def _held_out(items: Collection) -> Sequence[Item]:
    if items.has_splits:
        return [item for item in items if item.split == "test"] or list(items)
    return list(items.hold_out()[0]) or list(items)


def _by_label(index: Index, held_out: Sequence[Item]) -> Found:
    # Groups are no good to ask for: nearly everything is a "thing".
    groups = {box.group for item in held_out for box in item.boxes}
    every = Counter(label for item in held_out for label in item.labels)
    counts = Counter({label: count for label, count in every.items() if label not in groups}) or every
    telling = Counter({label: count for label, count in counts.items() if count <= _COMMON * len(held_out)})
    label, count = (telling or counts).most_common(1)[0]
    results = index.search(label, k=SHOWN)
    right = sum(label in result.labels for result in results)
    why = f"the label of {count} of {len(held_out)} held-out pictures, and of {right} of the {len(results)} found"
    return Found(label, why, results)


def _by_caption(index: Index, item: Item) -> Found:
    said = max(item.captions, key=len)  # the one that says most
    results = index.search(said, k=FAR)
    rank = next((result.rank for result in results if result.id == item.id), None)
    place = f"not among the first {len(results):,}" if rank is None else f"at place {rank:,} of {results.of:,}"
    why = f"said of the held-out picture {item.id}, which is {place}"
    return Found(said, why, replace(results, items=results.items[:SHOWN]))
