"""How a recipe is read: inheritance, overrides, YAML as people write it, and what each mistake is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polysem import recipes
from polysem.errors import ConfigError, PolysemError, UnknownNameError


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# ------------------------------------------------------------------------------------------------------- inheritance


def test_a_recipe_takes_what_it_does_not_say_from_the_one_it_extends(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.yaml", "extends: vse-infty\ntraining: {epochs: 3}\n")
    recipe, base = recipes.load(mine), recipes.load("vse-infty")
    assert recipe.name == "mine"
    assert recipe.training == base.training.model_copy(update={"epochs": 3})
    assert recipe.model_copy(update={"name": base.name, "training": base.training}) == base


def test_a_part_of_another_name_leaves_the_knobs_of_the_old_behind(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.yaml", "extends: vse-infty\nobjective: {name: infonce}\nschedule: {name: cosine}\n")
    recipe = recipes.load(mine)
    assert recipe.objective == {"name": "infonce"}
    assert recipe.schedule.milestones == []


def test_a_part_of_the_same_name_keeps_its_other_knobs(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.yaml", "extends: vse-infty\nobjective: {name: triplet, margin: 0.1}\n")
    assert recipes.load(mine).objective == {**recipes.load("vse-infty").objective, "margin": 0.1}


def test_another_pooling_leaves_the_knobs_of_the_old_behind() -> None:
    recipe = recipes.load("vse-infty-per-dimension", ["image.sets.pooling=mean"])
    assert recipe.image.sets == {"name": "single", "pooling": "mean"}
    assert recipe.text.sets["knobs"] == {"per_dimension": True}


def test_another_optimiser_keeps_rate_and_decay() -> None:
    optimiser = recipes.load("vse-infty", ["optimiser.name=adam"]).optimiser
    assert (optimiser.name, optimiser.lr, optimiser.weight_decay, optimiser.clip) == ("adam", 5e-4, 0.01, 2.0)


def test_a_list_is_replaced_as_a_whole(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine.yaml", "extends: dive\nregularisers: [{name: mmd, weight: 0.5}]\n")
    assert [(entry.name, entry.weight) for entry in recipes.load(mine).regularisers] == [("mmd", 0.5)]


def test_null_removes_a_part(tmp_path: Path) -> None:
    assert recipes.load("dive").image.pool is not None
    assert recipes.load("dive-without-global").image.pool is None


def test_a_file_extends_another_beside_it_wherever_it_is_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder", "base.yaml", "extends: vse-infty\ndim: 64\n")
    mine = write(tmp_path / "folder", "mine.yml", "extends: ./base.yaml\ntraining: {epochs: 3}\n")
    assert (recipes.load(mine).dim, recipes.load(mine).name) == (64, "mine")
    monkeypatch.chdir(tmp_path)
    assert recipes.load("folder/mine.yml").dim == 64


def test_recipes_that_extend_each_other_are_named_in_their_circle(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "extends: b.yaml\n")
    write(tmp_path, "b.yaml", "extends: a.yaml\n")
    with pytest.raises(ConfigError, match=r"in a circle: .*a\.yaml -> .*b\.yaml -> .*a\.yaml"):
        recipes.load(tmp_path / "a.yaml")


def test_extends_takes_one_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the name or path of one recipe"):
        recipes.load(write(tmp_path, "mine.yaml", "extends: [dive, vse-infty]\n"))


def test_what_several_recipes_extend_is_not_listed_but_can_be_read() -> None:
    assert not any(name.startswith("_") for name in recipes.names())
    assert "frozen" in recipes.source("_small")


# --------------------------------------------------------------------------------------------------------- overrides


def test_overrides_reach_every_level_and_the_last_one_holds() -> None:
    given = ["dim=64", "image.sets.knobs.temperature=0.2", "training.epochs=3", "training.epochs=4"]
    recipe = recipes.load("vse-infty", given)
    assert recipe.dim == 64
    assert recipe.image.sets["knobs"] == {"temperature": 0.2}
    assert recipe.training.epochs == 4


def test_a_number_steps_into_a_list() -> None:
    recipe = recipes.load("dive", ["regularisers.1.weight=0.5", "objective.mining=[[0, all], [2, hardest]]"])
    assert [entry.weight for entry in recipe.regularisers] == [0.01, 0.5]
    assert recipes.load("vse-infty", ["schedule.milestones.0=7"]).schedule.milestones == [7]
    stepped = recipes.load("vse-infty", ["objective.mining.1.0=3"])
    assert stepped.objective["mining"] == [[0, "all"], [3, "hardest"]]


def test_a_regulariser_of_another_name_keeps_its_weight_and_what_it_is_on() -> None:
    entry = recipes.load("pvse", ["regularisers.1.name=mmd"]).regularisers[1]
    assert (entry.name, entry.weight, entry.on, entry.knobs) == ("mmd", 0.1, "residual", {})


def test_values_are_written_as_in_yaml() -> None:
    recipe = recipes.load(
        "dive", ["image.pool=null", "image.sets.add_global=false", "regularisers=[]", "optimiser.lr=1e-5"]
    )
    assert (recipe.image.pool, recipe.regularisers, recipe.optimiser.lr) == (None, [], 1e-5)
    assert recipe.image.sets["add_global"] is False


def test_the_name_itself_can_be_overridden() -> None:
    recipe = recipes.load("dive", ["name=mine"])
    assert (recipe.name, recipe.summary) == ("mine", recipes.load("dive").summary)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epochs", "--set takes path.to.key=value"),
        ("=5", "--set takes path.to.key=value"),
        ("training..epochs=5", "--set takes path.to.key=value"),
        ("training.epochs=[1", "not readable YAML"),
        ("regularisers.5.weight=1", "'5' is not a position in a list of 2"),
        ("regularisers.first.weight=1", "'first' is not a position in a list of 2"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        recipes.load("dive", [override])
    assert message in str(raised.value)


# -------------------------------------------------------------------------------------------------------------- YAML


@pytest.mark.parametrize("text", ["5e-4", "5E-4", "0.0005", ".5e-3", "+5e-4", "5.e-4"])
def test_a_number_with_an_exponent_is_a_number(text: str) -> None:
    assert recipes.load("vse-infty", [f"optimiser.lr={text}"]).optimiser.lr == 5e-4


def test_on_is_a_key_and_no_truth_value() -> None:
    assert recipes.load("dive").regularisers[1].on == "residual"
    with pytest.raises(ConfigError, match=r"text\.augment\.words: .*boolean"):
        recipes.load("dive", ["text.augment.words=yes"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dim: 64\ndim: 32\n", "the key 'dim' stands twice"),
        ("extends: dive\nimage:\n  pool: null\n  pool: null\n", "the key 'pool' stands twice (line 3)"),
        ("dim: [1\n", "not readable YAML"),
        ("dim: 64\n\tx: 1\n", "(line 2)"),
        ("- dim\n", "not a mapping"),
        ("", "is empty"),
        ("dim: !!python/object:os.system {}\n", "not readable YAML"),
    ],
)
def test_unreadable_yaml_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        recipes.load(write(tmp_path, "mine.yaml", text))
    assert message in str(raised.value)
    assert "mine.yaml" in str(raised.value)


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'vse-infty'"):
        recipes.load("vse-infinty")


def test_an_absent_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"The recipe nowhere/mine\.yaml cannot be read"):
        recipes.load("nowhere/mine.yaml")


def test_a_recipe_written_out_in_full_is_the_same_recipe(tmp_path: Path) -> None:
    for name in ("dive", "vse-infty-grid-bert", "small-pvse"):
        recipe = recipes.load(name)
        assert recipes.load(write(tmp_path, "full.yaml", recipes.as_yaml(recipe))) == recipe
        assert recipes.parse(recipe.model_dump(mode="json")) == recipe


# ---------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("trainin.epochs=5", "training"),
        ("training.epoch=5", "epochs"),
        ("optimiser.learning_rate=1", "Known: clip, frozen, lr, lr_scales, name, weight_decay"),
        ("schedule.milestone=[1]", "milestones"),
        ("data.glov=package", "glove"),
        ("image.encode.name=region", "encoder"),
        ("image.augment.dropp=none", "drop"),
        ("regularisers.0.wieght=1", "weight"),
        ("image.encoder.inputs=5", "input_dim"),
        ("image.encoder.name=regions", "region"),
        ("image.pool.name=maxx", "max"),
        ("image.sets.name=slot", "slots"),
        ("text.sets.iteration=2", "iterations"),
        ("similarity.name=smoothchamfer", "smooth_chamfer"),
        ("similarity.alfa=2", "alpha"),
        ("objective.name=triplets", "triplet"),
        ("objective.marginn=2", "margin"),
        ("regularisers.0.name=mmmd", "mmd"),
        ("regularisers.0.knobs.gama=1", "gamma"),
        ("optimiser.lr_scales={text.set: 0.1}", "text.sets"),
    ],
)
def test_an_unknown_key_or_part_names_the_nearest(override: str, nearest: str) -> None:
    with pytest.raises(PolysemError) as raised:
        recipes.load("dive", [override])
    found = str(raised.value)
    assert nearest in found if nearest.startswith("Known") else f"Did you mean '{nearest}'?" in found


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("training.epochs=0", "training.epochs"),
        ("training.epochs='5'", "training.epochs"),
        ("training.captions=some", "training.captions"),
        ("training.captions=0", "training.captions"),
        ("optimiser.lr=-1", "optimiser.lr"),
        ("optimiser.lr=fast", "optimiser.lr"),
        ("optimiser.lr=.inf", "optimiser.lr"),
        ("optimiser.name=sgd", "optimiser.name"),
        ("dim=true", "dim"),
        ("image=5", "image"),
        ("image.encoder=region", "image.encoder"),
        ("image.augment.rate=1.0", "image.augment.rate"),
        ("regularisers.0.weight=-1", "regularisers.0.weight"),
        ("schedule.milestones=15", "schedule.milestones"),
        ("image.encoder.dropout=1.5", "image.encoder"),
        ("image.sets.k=four", "image.sets"),
        ("similarity.alpha=0", "similarity"),
        ("objective.margin=wide", "objective"),
    ],
)
def test_a_wrong_type_or_range_names_the_place(override: str, place: str) -> None:
    with pytest.raises(ConfigError) as raised:
        recipes.load("dive", [override])
    assert str(raised.value).startswith(f"{place}:")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("summary", "summary is missing"),
        ("training", "training is missing"),
        ("optimiser.lr", "optimiser.lr is missing"),
        ("text.sets", "text.sets is missing"),
        ("text.sets.name", "text.sets.name is missing: say which part, one of"),
        ("similarity.name", "similarity.name is missing"),
        ("regularisers.0.name", "regularisers.0.name is missing"),
        ("regularisers.0.weight", "regularisers.0.weight is missing"),
    ],
)
def test_a_missing_key_is_named(key: str, message: str) -> None:
    content: Any = recipes.load("dive").model_dump(mode="json")
    *path, last = key.split(".")
    place = content
    for step in path:
        place = place[int(step) if step.isdecimal() else step]
    del place[last]
    with pytest.raises(ConfigError) as raised:
        recipes.parse(content)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("vse-infty", ["image.sets={name: slots}", "similarity={name: mil}"], "adds a global feature"),
        ("vse-infty", ["image.sets={name: slots}", "image.pool={name: max}"], "cosine compares single vectors"),
        ("vse-infty", ["regularisers=[{name: diversity, weight: 1}]"], "every set has one"),
        ("photo-small", ["image.sets={name: ensemble, members: [{name: pie_net}]}"], "sets of 4 and 1"),
        (
            "photo-small",
            ["image.sets={name: ensemble, members: [{name: pie_net}]}", "similarity={name: mil}"],
            "'ensemble' adds a global feature",
        ),
        ("vse-infty", ["regularisers=[{name: triplet, weight: 1}]"], "is an objective, not a regulariser"),
        ("vse-infty", ["objective={name: mmd}"], "is a regulariser"),
        ("vse-infty", ["image.local=encoded"], "there is no project"),
        ("vse-infty", ["image.encoder={name: bigru}"], "encodes texts"),
        ("vse-infty", ["text.encoder={name: region}", "text.augment.words=false"], "encodes images"),
        ("vse-infty", ["image.augment.pixels=true"], "no pixels"),
        ("vse-infty", ["image.augment.words=true"], "no words"),
        ("vse-infty", ["image.project={name: grid}"], "takes features: frames or region"),
        ("vse-infty", ["image.frozen_epochs=25"], "outlasts training.epochs=25"),
        ("small-vse-infty", ["image.frozen_epochs=1"], "it never trains"),
        ("vse-infty", ["image.encoder={name: grid}", "image.frozen_epochs=1"], "it never trains"),
        ("vse-infty", ["schedule.every=5"], "either `milestones` or `every`"),
        ("vse-infty", ["schedule.milestones=[]"], "either `milestones` or `every`"),
        ("vse-infty", ["schedule={name: compounding}"], "needs `every`"),
        ("vse-infty", ["training.batch=1"], "without negatives"),
        ("vse-infty", ["objective.mining=[[1, all]]"], "ascending epochs from 0"),
        ("vse-infty", ["image.sets.pooling=median"], "Unknown pooling 'median'"),
        ("vse-infty", ["image.sets.knobs={k: 5}"], "Unknown knob of 'gpo' 'k'"),
        ("vse-infty", ["text.encoder={name: transformer}", "text.sets={name: summary}"], "adds a global feature"),
        ("dive", ["text.sets={name: shared}", "similarity={name: cosine}"], "sets of 4 and 4"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused_before_anything_is_built(
    name: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(PolysemError) as raised:
        recipes.load(name, overrides)
    assert message in str(raised.value)


def test_all_that_is_wrong_with_a_recipes_types_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        recipes.load("dive", ["dim=0", "training.epochs=0"])
    assert "dim:" in str(raised.value)
    assert "training.epochs:" in str(raised.value)
