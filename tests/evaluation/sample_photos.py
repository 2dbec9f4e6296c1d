"""Pictures whose captions each name a part of what they show."""

from __future__ import annotations

import numpy as np

from evaluation.sample_collections import NOWHERE
from polysem.data.collection import Collection, Item

THINGS = ("dog", "cat", "ball", "chair", "bike", "tree", "elephant")
COLOURS = ("red", "brown", "black", "white")
FORMS = ("A {} is near the grass .", "The {} is by a road .", "There is a {} with something", "{}s in the water")


def photos(count: int = 60, seed: int = 0) -> tuple[Collection, list[set[str]]]:
    """Pictures of one to three things, each of which one of its captions names, and what each shows."""
    rng = np.random.default_rng(seed)
    items, shown = [], []
    for number in range(count):
        captions, own = [], set()
        for thing in rng.choice(THINGS, size=rng.integers(1, 4), replace=False):
            colour = str(rng.choice(COLOURS)) if rng.random() < 0.6 else ""
            captions.append(str(rng.choice(FORMS)).format(f"{colour} {thing}".strip()))
            own |= {str(thing), f"{colour} {thing}".strip()}
        if number % 4 == 0:
            captions.append("Two men are on the road .")
            own.add("man")
        items.append(Item(f"{number}.jpg", NOWHERE, tuple(captions), (), "test"))
        shown.append(own)
    return Collection("toys", "features", items), shown
