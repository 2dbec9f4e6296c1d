"""Few pictures get smaller batches and more epochs, so that both models have steps enough to learn."""

from __future__ import annotations

from pathlib import Path

import pytest

from polysem import recipes
from polysem.data.batching import Batches
from polysem.data.collection import Collection, Item, Media
from polysem.demo import RECIPES
from polysem.demo.steps import STEPS, scale_recipe


def pictures(count: int, captions: int = 5) -> Collection:
    """Eight of ten are to be learned from."""
    splits = [*8 * ["train"], "val", "test"]
    said = [tuple(f"picture {i}, {number}" for number in range(captions)) for i in range(count)]
    items = [Item(str(i), Media(Path(), f"{i}.png"), said[i], split=splits[i % 10]) for i in range(count)]
    return Collection("toy", "image", items)


@pytest.mark.parametrize("name", RECIPES)
def test_a_thousand_pictures_and_more_are_trained_on_as_the_recipe_says(name):
    assert scale_recipe(name, pictures(1500)) == recipes.load(name)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("count", "captions"), [(40, 1), (40, 5), (400, 5)])
def test_a_few_pictures_are_enough_steps(name, count, captions):
    found, usual = scale_recipe(name, pictures(count, captions)), recipes.load(name)
    train = pictures(count, captions).split("train")
    steps = found.training.epochs * len(Batches(train, found.training.batch, found.training.captions))
    assert steps >= STEPS
    assert 16 <= found.training.batch < usual.training.batch
    assert found.training.epochs >= usual.training.epochs
    assert found.model_dump(exclude={"training"}) == usual.model_dump(exclude={"training"})


def test_what_is_asked_for_goes_first():
    found = scale_recipe("small-dive", pictures(40), ["training.epochs=2", "training.batch=20"])
    assert (found.training.epochs, found.training.batch) == (2, 20)
