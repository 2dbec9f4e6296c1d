"""The recipes that come with polysem: all load, and say what the papers say."""

from __future__ import annotations

import re

import pytest

from polysem import recipes
from polysem.recipes.loading import FAMILIES, catalogue, family
from polysem.weights import CATALOGUE

NAMES = recipes.names()
FEATURES = [f"{visual}-{text}" for visual in ("grid", "patch") for text in ("bigru", "bert")]
METHODS = ["vse++", "vse-infty", "vse-2ad", "pvse", "pcme-mp", "dive", "dive-mil", "dive-mp", "dive-chamfer"]
WITHOUT = [f"dive-without-{what}" for what in ("learned-slots", "residual-update", "global", "any")]


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_loads_under_its_name_with_a_summary_and_its_row(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.name == name
    assert recipe.summary
    assert recipe.paper


def test_each_method_is_there_in_full_and_small_and_on_every_feature() -> None:
    wanted = [*METHODS, *(f"small-{name}" for name in METHODS), *WITHOUT, "dive-pie-net", "dive-transformer"]
    wanted += [f"{name}-{which}" for name in ("vse-infty", "vse-2ad") for which in ("region-bert", *FEATURES)]
    wanted += ["vse-infty-official", "vse-2ad-official", "dive-official", "dive-f30k", "dive-grid", "dive-resnext-bert"]
    wanted += ["small-vse-infty-bigru", "small-dive-bigru"]
    wanted += [f"small-{name}-dinov2" for name in ("vse++", "vse-infty", "vse-2ad", "dive")]
    wanted += ["small-vse-infty-tinyvit", "small-sets", "small-sets-dinov2"]
    wanted += ["vse++-video", "vse-infty-video", "small-vse++-video", "small-vse-infty-video", "small-dive-video"]
    wanted += [
        f"{size}semantic-sharing{kind}" for size in ("", "small-") for kind in ("", "-consistency", "-independent")
    ]
    wanted += ["dscmr", "small-dscmr", "semantic-sharing-official", "semantic-sharing-bert", "semantic-sharing-coco"]
    assert [name for name in wanted if name not in NAMES] == []


def test_the_catalogue_holds_every_recipe_once_under_its_family() -> None:
    listed = [(title, recipe.name) for title, found in catalogue().items() for recipe in found]
    assert sorted(name for _, name in listed) == list(NAMES)
    assert all(FAMILIES[family(name)] == title for title, name in listed)


def test_no_two_recipes_say_the_same() -> None:
    loaded = [recipes.load(name) for name in NAMES]
    said = [recipe.model_dump_json(exclude={"name", "summary", "paper"}) for recipe in loaded]
    assert [name for name, text in zip(NAMES, said, strict=True) if said.count(text) > 1] == []
    assert len({recipe.summary for recipe in loaded}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_short_file_that_only_says_what_differs(name: str) -> None:
    lines = [line for line in recipes.source(name).splitlines() if not line.lstrip().startswith("#")]
    assert len(lines) <= 25
    assert all(len(line) <= 120 for line in recipes.source(name).splitlines())


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("small-")])
def test_small_recipes_train_nothing_but_heads_on_encoders_of_the_catalogue(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.image.encoder["trainable"] == "none"
    encoder = recipe.image.encoder.get("encoder", recipe.image.encoder)  # a video's frames have one of their own
    kind = name.rpartition("-")[2]
    assert encoder["model"].startswith(kind if kind in ("dinov2", "tinyvit") else "efficientnet-lite")
    assert encoder["model"] in CATALOGUE
    assert recipe.text.encoder["name"] == "bigru" or recipe.text.encoder["trainable"] == "none"
    assert recipe.data.glove in (None, "package")


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("small-")])
def test_small_recipes_of_a_family_train_alike(name: str) -> None:
    head = re.match(r"small-(vse|dive|pvse|pcme|sets|semantic-sharing|dscmr)", name)
    assert head
    labelled = {"semantic-sharing": "small-semantic-sharing", "dscmr": "small-semantic-sharing"}
    first = {"vse": "small-vse-infty", "dive": "small-dive", "sets": "small-sets", **labelled}.get(
        head[1], "small-pvse"
    )
    kind = name.rpartition("-")[2]
    first = recipes.load(f"{first}-{kind}" if kind in ("video", "dinov2") else first)
    recipe = recipes.load(name)
    assert (recipe.optimiser, recipe.schedule, recipe.training) == (first.optimiser, first.schedule, first.training)


# What the papers and their supplements tabulate: optimiser, rate, decay, clip; epochs, batch, captions.
TRAINING = {
    "vse++": ("adam", 2e-4, 0.0, 2.0, 30, 128, "one"),
    "vse-infty": ("adamw", 5e-4, 0.01, 2.0, 25, 128, "one"),
    "vse-infty-region-bert": ("adamw", 5e-4, 1e-4, 2.0, 25, 128, "one"),
    "vse-infty-grid-bigru": ("adamw", 5e-4, 1e-4, 2.0, 25, 128, "one"),
    "vse-2ad": ("adamw", 5e-4, 0.01, 2.0, 25, 128, "one"),
    "vse-2ad-region-bert": ("adamw", 5e-4, 1e-4, 2.0, 25, 128, "one"),
    "vse-2ad-patch-bigru": ("adamw", 5e-4, 0.01, 2.0, 25, 128, "one"),
    "vse-2ad-patch-bert": ("adamw", 5e-4, 1e-4, 2.0, 25, 128, "one"),
    "pvse": ("adam", 2e-4, 0.0, 2.0, 30, 256, "one"),
    "pcme-mp": ("adam", 2e-4, 0.0, 2.0, 30, 128, "one"),
    "semantic-sharing": ("adam", 1e-4, 0.0, None, 45, 64, "one"),
    "semantic-sharing-official": ("adam", 2e-4, 0.0, None, 35, 64, "one"),
    "dive": ("adamw", 1e-3, 1e-4, 1.0, 80, 200, "all"),
    "dive-f30k": ("adamw", 1e-3, 1e-4, 1.0, 80, 200, "all"),
    "dive-grid": ("adamw", 1e-3, 1e-4, 1.0, 120, 200, "all"),
    "dive-grid-f30k": ("adamw", 2e-3, 1e-4, 1.0, 120, 200, "all"),
    "dive-resnext-bert": ("adamw", 1e-4, 1e-4, 1.0, 50, 128, "all"),
}


@pytest.mark.parametrize("name", TRAINING)
def test_training_is_the_papers(name: str) -> None:
    recipe = recipes.load(name)
    o, t = recipe.optimiser, recipe.training
    assert (o.name, o.lr, o.weight_decay, o.clip, t.epochs, t.batch, t.captions) == TRAINING[name]


def test_backbones_rest_and_learn_as_slowly_as_the_papers_say() -> None:
    grid, bert = recipes.load("vse-infty-grid-bert").image, recipes.load("vse-infty-grid-bert").text
    assert (grid.encoder["trainable"], grid.encoder["lr_scale"], grid.frozen_epochs) == ("all", 0.1, 1)
    assert bert.encoder["lr_scale"] == 0.1
    assert recipes.load("vse-infty-grid-bert").schedule.ramp_epoch == 1
    assert recipes.load("vse-infty-grid-resnext-bert").image.encoder["lr_scale"] == 0.01
    assert recipes.load("dive").optimiser.lr_scales == {"image": 0.1, "text.sets": 0.1}
    assert recipes.load("dive-f30k").optimiser.lr_scales == {"image": 0.05, "text.sets": 0.05}
    cnn = recipes.load("dive-grid-f30k")
    assert cnn.optimiser.lr_scales == {"image": 0.01, "text.sets": 0.01, "image.encoder.body": 1.0}
    assert (cnn.image.frozen_epochs, cnn.schedule.every) == (50, 10)
    slow = recipes.load("dive-resnext-bert")
    assert (slow.optimiser.lr_scales["image.encoder.body"], slow.image.frozen_epochs) == (0.1, 1)
    assert slow.objective["mining"] == [[0, "all"], [1, "hardest"]]


def test_the_first_epoch_of_vse_infty_presses_all_negatives_and_dives_does_not() -> None:
    assert recipes.load("vse-infty").objective["mining"] == [[0, "all"], [1, "hardest"]]
    assert recipes.load("dive").objective["mining"] == "hardest"


@pytest.mark.parametrize("name", ["dive-mil", "dive-mp", "dive-chamfer", "dive-pie-net", "dive-transformer"])
def test_an_ablation_of_dive_changes_one_thing(name: str) -> None:
    same = {"name", "summary", "paper", "similarity"}
    if name in ("dive-pie-net", "dive-transformer"):
        same = {"name", "summary", "paper", "image", "text"}
    ablated, whole = recipes.load(name), recipes.load("dive-f30k")
    assert ablated.model_dump(exclude=same) == whole.model_dump(exclude=same)
    assert ablated.model_dump(include=same - {"name", "summary", "paper"}) != whole.model_dump(include=same)
