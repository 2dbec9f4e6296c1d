"""Two example searches that a collection can answer, and how well they were answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from polysem.data.collection import Collection, Item
from polysem.search import Index, SearchResults

SHOWN = 3
DEPTH = 1000
"""How far down a picture is looked for."""
GUESSES = ("people outdoors", "an animal")
_COMMON = 0.25
"""A label that a larger share of the pictures has is no feat to find."""


@dataclass(frozen=True)
class ExampleSearch:
    """An example search: the query, why it was chosen and how it went, and the best results."""

    query: str
    why: str
    results: SearchResults


def run_example_searches(index: Index, items: Collection) -> list[ExampleSearch]:
    """A label and a caption, or two captions, of pictures held out from training; guesses where there are neither."""
    searches = []
    held_out = _held_out(items)
    if any(item.labels for item in held_out):
        searches.append(_search_label(index, held_out))
    captioned = [item for item in held_out if item.captions]
    searches += [_search_caption(index, item) for item in captioned[: len(GUESSES) - len(searches)]]
    why = "a guess: these pictures have neither captions nor labels"
    return [*searches, *(ExampleSearch(guess, why, index.search(guess, k=SHOWN)) for guess in GUESSES[len(searches) :])]


def _held_out(items: Collection) -> Sequence[Item]:
    if items.has_splits:
        return [item for item in items if item.split == "test"] or list(items)
    return list(items.hold_out()[0]) or list(items)


def _search_label(index: Index, held_out: Sequence[Item]) -> ExampleSearch:
    # Groups are no good to search for: nearly everything is a "thing".
    groups = {box.group for item in held_out for box in item.boxes}
    every = Counter(label for item in held_out for label in item.labels)
    counts = Counter({label: count for label, count in every.items() if label not in groups}) or every
    rare = Counter({label: count for label, count in counts.items() if count <= _COMMON * len(held_out)})
    label, count = (rare or counts).most_common(1)[0]
    results = index.search(label, k=SHOWN)
    right = sum(label in result.labels for result in results)
    why = f"the label of {count} of {len(held_out)} held-out pictures, and of {right} of the {len(results)} found"
    return ExampleSearch(label, why, results)


def _search_caption(index: Index, item: Item) -> ExampleSearch:
    caption = max(item.captions, key=len)  # the one that says most
    results = index.search(caption, k=DEPTH)
    rank = next((result.rank for result in results if result.id == item.id), None)
    position = f"not among the first {len(results):,}" if rank is None else f"at place {rank:,} of {results.of:,}"
    why = f"said of the held-out picture {item.id}, which is {position}"
    return ExampleSearch(caption, why, replace(results, items=results.items[:SHOWN]))
