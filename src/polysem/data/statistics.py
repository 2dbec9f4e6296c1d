"""A collection in figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from polysem.data.collection import Collection
from polysem.data.tokenise import words


@dataclass(frozen=True)
class Statistics:
    name: str
    kind: str
    items: int
    splits: dict[str, int]
    captions: int
    captions_per_item: dict[int, int]
    words: int
    mean_words_per_caption: float
    different_words: int
    labels: dict[str, int]
    boxes: int
    skipped: int


def statistics(collection: Collection) -> Statistics:
    """Counts of everything that a collection holds; pictures are not opened."""
    lengths, vocabulary = 0, Counter[str]()
    for caption in collection.captions:
        found = words(caption)
        lengths += len(found)
        vocabulary.update(found)
    captions = len(collection.captions)
    return Statistics(
        name=collection.name,
        kind=collection.kind,
        items=len(collection),
        splits=collection.splits,
        captions=captions,
        captions_per_item=dict(sorted(Counter(len(item.captions) for item in collection).items())),
        words=lengths,
        mean_words_per_caption=lengths / captions if captions else 0.0,
        different_words=len(vocabulary),
        labels=dict(Counter(label for item in collection for label in item.labels).most_common()),
        boxes=sum(len(item.boxes) for item in collection),
        skipped=len(collection.skipped),
    )
