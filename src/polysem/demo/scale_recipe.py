"""A recipe for as many pictures as there are: with few of them, large batches are too few steps to learn anything."""

from __future__ import annotations

from collections.abc import Sequence

from polysem import recipes
from polysem.data.batching import Batches
from polysem.data.collection import Collection
from polysem.recipes import Recipe
from polysem.training.data import split

BATCHES = 8
"""Of an epoch at least, as long as a batch has enough negatives."""
SMALLEST = 16
STEPS = 72
"""What the small recipes take on a thousand pictures, and a run at least."""


def paced(name: str, lessons: Collection, settings: Sequence[str] = ()) -> Recipe:
    """The recipe of this name with smaller batches and more epochs where that is needed; settings go first."""
    recipe = recipes.load(name, settings)
    train, batch = split(lessons, recipe.data).train, recipe.training.batch
    while batch // 2 >= SMALLEST and len(train) // batch < BATCHES:
        batch //= 2
    steps = len(Batches(train, batch, recipe.training.captions, recipe.training.seed))
    epochs = max(recipe.training.epochs, -(-STEPS // steps))
    return recipes.load(name, [f"training.batch={batch}", f"training.epochs={epochs}", *settings])
