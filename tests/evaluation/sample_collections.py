"""Small collections and the obvious way to rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polysem.data.collection import Collection, Item, Media

NOWHERE = Media(Path(), "none.npy")


def collection(captions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]] | None = None) -> Collection:
    """Items that are never opened, with these captions and labels."""
    labels = [()] * len(captions) if labels is None else labels
    items = [
        Item(f"item {number}", NOWHERE, tuple(own), tuple(names), "test")
        for number, (own, names) in enumerate(zip(captions, labels, strict=True))
    ]
    return Collection("toy", "features", items)


def flagged(flags: np.ndarray) -> list[list[str]]:
    """(items, labels) of 0 and 1 -> the labels of each item."""
    return [[f"label {place:02}" for place in np.flatnonzero(row)] for row in flags]


def numbered(count: int, per_item: int) -> list[list[str]]:
    """Captions no two of which are equal."""
    return [[f"caption {number} of {item}" for number in range(per_item)] for item in range(count)]


def sorted_places(scores: Sequence[float], positives: Sequence[int]) -> list[int]:
    """The places of the right answers when all are sorted, wrong ones first where scores are equal."""
    right = set(positives)
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place in right))
    return [place for place, answer in enumerate(order) if answer in right]
