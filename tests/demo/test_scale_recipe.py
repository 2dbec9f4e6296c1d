"""What the demo trains: three models of one recipe; few pictures get smaller batches and more epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

from polysem import recipes
from polysem.data.batching import Batches
from polysem.data.collection import Collection, Item, Media
from polysem.demo import MODELS, RECIPE
from polysem.demo.steps import STEPS, describe_model, plan_models, scale_recipe

RECIPES = (RECIPE, f"{RECIPE}-dinov2")


def pictures(count: int, captions: int = 5) -> Collection:
    """Eight of ten are to be learned from."""
    splits = [*8 * ["train"], "val", "test"]
    said = [tuple(f"picture {i}, {number}" for number in range(captions)) for i in range(count)]
    items = [Item(str(i), Media(Path(), f"{i}.png"), said[i], split=splits[i % 10]) for i in range(count)]
    return Collection("toy", "image", items)


@pytest.mark.parametrize("name", RECIPES)
def test_thousands_of_pictures_are_trained_on_as_the_recipe_says(name):
    assert scale_recipe(name, pictures(5200)) == recipes.load(name)


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
    found = scale_recipe(RECIPE, pictures(40), ["training.epochs=2", "training.batch=20"])
    assert (found.training.epochs, found.training.batch) == (2, 20)


@pytest.mark.parametrize("name", RECIPES)
def test_the_single_vectors_differ_from_the_set_in_their_number_and_width_alone(name):
    planned = {model: recipes.load(name, changes).model_dump() for model, changes in plan_models(name).items()}
    assert tuple(planned) == MODELS
    whole = planned["set"]
    count, dim = whole["image"]["sets"].pop("k"), whole.pop("dim")
    assert count > 1
    for model, width in (("single", dim), ("single-equal-bytes", count * dim)):
        assert planned[model]["image"]["sets"].pop("k") == 1
        assert planned[model].pop("dim") == width
        assert planned[model] == whole


def test_the_width_follows_the_settings():
    assert plan_models(RECIPE, ["dim=16", "image.sets.k=4"])["single-equal-bytes"] == ["image.sets.k=1", "dim=64"]


def test_it_is_told_what_stands_for_a_picture():
    told = [describe_model(recipes.load(RECIPE, changes), changes) for changes in plan_models(RECIPE).values()]
    assert told == [
        f"a vector of 256 numbers for each picture ({RECIPE} image.sets.k=1)",
        f"a vector of 2,048 numbers for each picture ({RECIPE} image.sets.k=1 dim=2048)",
        f"8 vectors of 256 numbers for each picture ({RECIPE})",
    ]
