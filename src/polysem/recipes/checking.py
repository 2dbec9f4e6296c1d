"""What no type can say: parts that exist, knobs that fit them, and parts that fit together."""

from __future__ import annotations

from types import ModuleType

from polysem import encoders, objectives, pooling, sets, similarity
from polysem.encoders.base import registry as encoder_registry
from polysem.errors import ConfigError, PolysemError, unknown
from polysem.objectives.base import Objective
from polysem.objectives.base import Regulariser as RegulariserPart
from polysem.objectives.base import registry as objective_registry
from polysem.objectives.label_objective import LabelObjective
from polysem.recipes.schema import PartConfig, Recipe, Side

PLACES = ("encoder", "project", "pool", "sets")
SINGLE = ("single", "summary", "classes", "common")
CLASSIFYING = ("classes", "common")


def check(recipe: Recipe) -> None:
    """Raise for the first thing that cannot work, before anything is read or built."""
    for name, side in (("image", recipe.image), ("text", recipe.text)):
        _check_side(name, side, recipe)
    _check_part("similarity", similarity, recipe.similarity, complete=True)
    _check_part("objective", objectives, recipe.objective, complete=True)
    _check_roles(recipe)
    _check_labels(recipe)
    _check_sets(recipe)
    _check_training(recipe)


def _check_part(place: str, folder: ModuleType, config: PartConfig, complete: bool = False) -> None:
    """complete: no width is to come from elsewhere, so that the part can be built to see whether it can be."""
    if not isinstance(config.get("name"), str):
        raise ConfigError(f"{place}.name is missing: say which part, one of {', '.join(folder.names())}.")
    try:
        folder.check(**config)
        if complete:
            folder.build(**config)
    except PolysemError as error:
        raise type(error)(f"{place}: {error}") from None


def _check_side(name: str, side: Side, recipe: Recipe) -> None:
    _check_part(f"{name}.encoder", encoders, side.encoder)
    if side.encoder["name"] == "video_frames" and side.encoder.get("encoder") is not None:
        _check_part(f"{name}.encoder.encoder", encoders, side.encoder["encoder"])
    if side.project is not None:
        _check_part(f"{name}.project", encoders, side.project)
        if side.project["name"] not in ("region", "frames"):
            raise ConfigError(
                f"{name}.project takes features: region or frames, not {side.project['name']!r}. "
                f"What reads pixels or tokens is {name}.encoder."
            )
    if side.pool is not None:
        _check_part(f"{name}.pool", pooling, side.pool)
    if name == "image" or side.sets.get("name") != "shared":
        _check_part(f"{name}.sets", sets, side.sets)
    elif own := [knob for knob in side.sets if knob != "name"]:
        raise ConfigError(
            f"{name}.sets is shared: it is image.sets itself and has no {', '.join(own)} of its own. "
            f"Set image.sets.{own[0]} instead."
        )
    if side.sets["name"] == "single":
        inner = {"name": side.sets.get("pooling", "gpo"), **(side.sets.get("knobs") or {})}
        _check_part(f"{name}.sets.pooling", pooling, inner)
    if side.local == "encoded" and side.project is None:
        raise ConfigError(f"{name}.local=encoded means the features before {name}.project, and there is no project.")
    kind = encoder_registry.find(side.encoder["name"]).kind
    if (kind == "text") != (name == "text"):
        raise ConfigError(
            f"{name}.encoder {side.encoder['name']!r} encodes {kind}s. `polysem parts encoders` lists all."
        )
    _check_augment(name, side)
    if side.frozen_epochs and _trainable(side) == "none":
        raise ConfigError(
            f"{name}.frozen_epochs={side.frozen_epochs} ends a rest, but {name}.encoder.trainable is none: "
            f"it never trains. Leave one of them out."
        )
    if side.frozen_epochs >= recipe.training.epochs:
        raise ConfigError(
            f"{name}.frozen_epochs={side.frozen_epochs} outlasts training.epochs={recipe.training.epochs}: "
            f"the encoder would never train. Say {name}.encoder.trainable=none if that is meant."
        )


def _trainable(side: Side) -> object:
    """What of the encoder trains: as given, or by the encoder's own default."""
    if "trainable" in side.encoder:
        return side.encoder["trainable"]
    knobs = encoders.describe(side.encoder["name"]).knobs
    return next((knob.default.strip("'") for knob in knobs if knob.name == "trainable"), "all")


def _check_augment(name: str, side: Side) -> None:
    takes = encoder_registry.find(side.encoder["name"]).takes
    if side.augment.pixels and takes != "pixels":
        raise ConfigError(f"{name}.augment.pixels: the encoder {side.encoder['name']!r} takes {takes}, no pixels.")
    if side.augment.words and takes != "tokens":
        raise ConfigError(f"{name}.augment.words: the encoder {side.encoder['name']!r} takes {takes}, no words.")


def _check_roles(recipe: Recipe) -> None:
    if not issubclass(objective_registry.find(recipe.objective["name"]), (Objective, LabelObjective)):
        raise ConfigError(
            f"objective: {recipe.objective['name']!r} is a regulariser; it goes with a weight into `regularisers`."
        )
    for place, entry in enumerate(recipe.regularisers):
        _check_part(f"regularisers.{place}", objectives, {"name": entry.name, **entry.knobs}, complete=True)
        if not issubclass(objective_registry.find(entry.name), RegulariserPart):
            raise ConfigError(f"regularisers.{place}: {entry.name!r} is an objective, not a regulariser.")


def _check_labels(recipe: Recipe) -> None:
    """What learns labels has to predict them; what guesses hidden tokens has to see them and what they were."""
    objective, image = recipe.objective["name"], recipe.image.sets
    text = image if recipe.text.sets["name"] == "shared" else recipe.text.sets
    if recipe.dim == "labels" and image["name"] != "classes":
        raise ConfigError(
            f"dim=labels is for vectors of class probabilities: image.sets.name=classes. Here image.sets is "
            f"{image['name']!r}: give dim a number."
        )
    if recipe.dim == "labels" and image.get("embed", "classes") != "classes":
        raise ConfigError(
            f"image.sets.embed={image['embed']} takes the encoder's states for vectors, as wide as its input_dim, "
            f"where dim=labels is one number for each label: give dim a number, --set dim={image.get('input_dim')}."
        )
    part = objectives.build(**recipe.objective)
    if not isinstance(part, LabelObjective):
        return
    if recipe.teacher is not None:
        raise ConfigError(
            f"teacher: what a teacher knows are scores of pairs, and objective {objective} learns labels. Leave it out."
        )
    for side, sets_ in (("image", image), ("text", text)):
        if sets_["name"] not in CLASSIFYING:
            raise ConfigError(
                f"objective {objective} learns labels, and {side}.sets {sets_['name']!r} predicts none. "
                f"Take {' or '.join(CLASSIFYING)}."
            )
        if part.hidden_weight and sets_["name"] != "classes":
            raise ConfigError(
                f"objective.lambda={part.hidden_weight} needs {side}.sets classes, which can guess tokens."
            )
    if part.hidden_weight and recipe.text.augment.words:
        raise ConfigError("objective.lambda and text.augment.words both hide words. Turn one of them off.")
    fixed = encoder_registry.find(recipe.image.encoder["name"]).takes == "features"
    # Without a projection behind it the encoder gets one of its own, to the width of what follows, and that learns.
    learns = _trainable(recipe.image) != "none" or recipe.image.project is None or recipe.image.encoder.get("dim")
    if part.hidden_weight and not fixed and (learns or recipe.image.augment.pixels):
        width = image.get("input_dim", recipe.dim)
        raise ConfigError(
            f"objective.lambda={part.hidden_weight} has hidden regions guessed, and this image encoder's change as it "
            "trains. Freeze it (--set image.encoder.trainable=none, without image.encoder.dim and augment.pixels) and "
            f"project behind it (--set image.project.name=region --set image.project.form=linear --set "
            f"image.project.dim={width}), or set objective.lambda=0."
        )


def _members(sets: PartConfig) -> list[PartConfig]:
    """The predictors of a set: itself, or those of a chorus."""
    return list(sets.get("members", [])) if sets["name"] == "chorus" else [sets]


def _size(side: Side) -> int:
    return sum(1 if each.get("name") in SINGLE else int(each.get("k", 4)) for each in _members(side.sets))


def _check_sets(recipe: Recipe) -> None:
    image = _size(recipe.image)
    text = image if recipe.text.sets["name"] == "shared" else _size(recipe.text)
    if recipe.similarity["name"] == "cosine" and (image, text) != (1, 1):
        raise ConfigError(
            f"similarity cosine compares single vectors; this recipe makes sets of {image} and {text}. "
            "Choose smooth_chamfer, chamfer, mil or match_probability."
        )
    if (image, text) == (1, 1) and any(entry.name == "diversity" for entry in recipe.regularisers):
        raise ConfigError("The regulariser diversity spreads the elements of a set; here every set has one. Remove it.")
    for name, side in (("image", recipe.image), ("text", recipe.text)):
        config = recipe.image.sets if side.sets["name"] == "shared" else side.sets
        needing = [
            each["name"]
            for each in _members(config)
            if each.get("name") in ("slots", "transformer", "pie_net", "summary") and each.get("add_global", True)
        ]
        if needing and side.pool is None and side.encoder["name"] != "bigru":
            raise ConfigError(
                f"{name}.sets {needing[0]!r} adds a global feature, and the encoder {side.encoder['name']!r} makes "
                f"none. Give {name}.pool, e.g. --set {name}.pool.name=max."
            )


def _check_training(recipe: Recipe) -> None:
    known = ["image", "text", "similarity"]
    for name, side in (("image", recipe.image), ("text", recipe.text)):
        known += [f"{name}.{part}" for part in PLACES if getattr(side, part) is not None]
        known += [f"{name}.encoder.{part}" for part in ("body", "head")]
    for place in recipe.optimiser.lr_scales:
        if place not in known:
            raise unknown("place in optimiser.lr_scales", place, known)
    schedule = recipe.schedule
    if schedule.name == "step" and bool(schedule.milestones) == (schedule.every is not None):
        raise ConfigError("schedule step takes either `milestones` or `every`: give one of them.")
    if schedule.name not in ("step", "compounding") and (schedule.milestones or schedule.every is not None):
        raise ConfigError(
            f"schedule {schedule.name} has no use for `milestones` or `every`: leave them out, or choose step."
        )
    if recipe.data.val in recipe.data.train:
        raise ConfigError(f"data.val={recipe.data.val} is also in data.train: validation would measure memory.")
    if recipe.data.glove is not None and recipe.text.encoder["name"] != "bigru":
        raise ConfigError(
            f"data.glove starts the words of a bigru; text.encoder is {recipe.text.encoder['name']!r}. Leave it out."
        )
    if schedule.name == "compounding" and schedule.every is None:
        raise ConfigError("schedule compounding needs `every`.")
    if recipe.training.batch < 2:
        raise ConfigError("training.batch=1 leaves an image without negatives. Give at least 2.")
