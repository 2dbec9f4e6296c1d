"""What types cannot rule out in a recipe: parts that exist, knobs that fit them, and parts that fit together."""

from __future__ import annotations

from types import ModuleType

from polysem import encoders, objectives, pooling, sets, similarity
from polysem.encoders.base import registry as encoder_registry
from polysem.errors import ConfigError, PolysemError, unknown
from polysem.objectives.base import LabelObjective, Objective, Regulariser
from polysem.objectives.base import registry as objective_registry
from polysem.recipes.schema import SHARED, PartConfig, Recipe, TowerRecipe
from polysem.sets.base import SetPredictor
from polysem.sets.base import registry as set_registry
from polysem.similarity.base import registry as similarity_registry

PLACES = ("encoder", "project", "pool", "sets")

Predictors = list[tuple[str, type[SetPredictor], PartConfig]]
"""Side, class and config of both set predictors; a shared one is both."""


def check(recipe: Recipe) -> None:
    """Raise for the first thing that cannot work, before anything is read or built.

    Raises:
        ConfigError, UnknownNameError: naming the place in the recipe, what stands there and what would do.
    """
    for name, side in recipe.sides():
        _check_side(name, side, recipe)
    _check_part("similarity", similarity, recipe.similarity, complete=True)
    _check_part("objective", objectives, recipe.objective, complete=True)
    if issubclass(objective_registry.find(name := recipe.objective["name"]), Regulariser):
        raise ConfigError(f"objective: {name!r} is a regulariser; it goes with a weight into `regularisers`.")
    for number, entry in enumerate(recipe.regularisers):
        _check_part(f"regularisers.{number}", objectives, {"name": entry.name, **entry.knobs}, complete=True)
        if not issubclass(objective_registry.find(entry.name), Regulariser):
            raise ConfigError(f"regularisers.{number}: {entry.name!r} is an objective, not a regulariser.")
    _check_auxiliary(recipe)
    if recipe.phrases is not None and encoder_registry.find(name := recipe.text.encoder["name"]).takes != "tokens":
        raise ConfigError(f"phrases: text.encoder {name!r} reads no words. Leave them out, or take one that does.")
    image = recipe.image.sets
    text = image if recipe.text.sets["name"] == SHARED else recipe.text.sets
    predictors = [(side, set_registry.find(part["name"]), part) for side, part in (("image", image), ("text", text))]
    _check_labels(recipe, predictors)
    _check_global_vectors(recipe, predictors)
    _check_sets(recipe, predictors)
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


def _check_side(name: str, side: TowerRecipe, recipe: Recipe) -> None:
    if isinstance(wrapped := side.encoder.get("encoder"), dict):
        _check_part(f"{name}.encoder.encoder", encoders, wrapped)
    _check_part(f"{name}.encoder", encoders, side.encoder)
    encoder, encoder_name = encoder_registry.find(side.encoder["name"]), side.encoder["name"]
    if side.project is not None:
        _check_part(f"{name}.project", encoders, side.project)
        if encoder_registry.find(side.project["name"]).takes != "features":
            fitting = [known for known in encoders.names() if encoder_registry.find(known).takes == "features"]
            raise ConfigError(
                f"{name}.project takes features: {' or '.join(fitting)}, not {side.project['name']!r}. "
                f"What reads pixels or tokens is {name}.encoder."
            )
    if side.pool is not None:
        _check_part(f"{name}.pool", pooling, side.pool)
    if name == "image" or side.sets.get("name") != SHARED:
        _check_part(f"{name}.sets", sets, side.sets)
    elif own := [knob for knob in side.sets if knob != "name"]:
        raise ConfigError(f"{name}.sets is shared: it takes no {', '.join(own)}. Set image.sets.{own[0]} instead.")
    if side.local == "encoded" and side.project is None:
        raise ConfigError(f"{name}.local=encoded means the features before {name}.project, and there is no project.")
    if (encoder.kind == "text") != (name == "text"):
        raise ConfigError(f"{name}.encoder {encoder_name!r} encodes {encoder.kind}s. See `polysem parts encoders`.")
    for what, read in (("pixels", "pixels"), ("words", "tokens")):
        if getattr(side.augment, what) and encoder.takes != read:
            raise ConfigError(f"{name}.augment.{what}: the encoder {encoder_name!r} takes {encoder.takes}, no {what}.")
    frozen, epochs = f"{name}.frozen_epochs={side.frozen_epochs}", recipe.training.epochs
    if side.frozen_epochs and _trainable(side) == "none":
        raise ConfigError(f"{frozen}, but {name}.encoder.trainable=none: it never trains. Leave one of them out.")
    if side.frozen_epochs >= epochs:
        raise ConfigError(f"{frozen} outlasts training.epochs={epochs}. To freeze it: {name}.encoder.trainable=none.")


def _trainable(side: TowerRecipe) -> object:
    """What of the encoder trains: as given, or by the encoder's own default."""
    return encoder_registry.find(side.encoder["name"]).knob(side.encoder, "trainable", "all")


def _check_labels(recipe: Recipe, predictors: Predictors) -> None:
    """What learns labels has to predict them; masked modelling needs the tokens and what they were."""
    _, predictor, image = predictors[0]
    if recipe.dim == "labels" and not predictor.dimensions_are_labels(image):
        embed = f" with embed={image['embed']}" if "embed" in image else ""
        raise ConfigError(
            f"dim=labels is for vectors with a number for each label, as semantic_sharing makes them; image.sets is "
            f"{image['name']!r}{embed}: give dim a number, --set dim={image.get('input_dim', 256)}."
        )
    part, name = objectives.build(**recipe.objective), recipe.objective["name"]
    if not isinstance(part, LabelObjective):
        return
    if recipe.phrases is not None:
        raise ConfigError(f"phrases: they are matched with images, and objective {name} learns labels. Leave them out.")
    if recipe.teacher is not None:
        raise ConfigError(f"teacher: it teaches scores of pairs, and objective {name} learns labels. Leave it out.")
    for side, cls, config in predictors:
        if not cls.classifies:
            fitting = [known for known in sets.names() if set_registry.find(known).classifies]
            wrong = f"{side}.sets {config['name']!r} predicts none"
            raise ConfigError(f"objective {name} learns labels, and {wrong}. Take {' or '.join(fitting)}.")
        if part.masked_weight and not cls.predicts_tokens:
            raise ConfigError(
                f"objective.lambda={part.masked_weight} masks tokens to be predicted, and {side}.sets "
                f"{config['name']!r} has no state for each token. Take semantic_sharing, or set objective.lambda=0."
            )
    if part.masked_weight and recipe.text.augment.words:
        raise ConfigError("objective.lambda and text.augment.words both mask words. Turn one of them off.")
    fixed = encoder_registry.find(recipe.image.encoder["name"]).takes == "features"
    # Without a projection behind it the encoder gets one of its own, to the width of what follows, and that learns.
    learns = _trainable(recipe.image) != "none" or recipe.image.project is None or recipe.image.encoder.get("dim")
    if part.masked_weight and not fixed and (learns or recipe.image.augment.pixels):
        raise ConfigError(
            f"objective.lambda={part.masked_weight} has masked regions predicted, and this image encoder's change as "
            "it trains. Freeze it (--set image.encoder.trainable=none, without image.encoder.dim and augment.pixels) "
            f"and project behind it (--set image.project.name=region --set image.project.form=linear --set "
            f"image.project.dim={image.get('input_dim', recipe.dim)}), or set objective.lambda=0."
        )


def _check_auxiliary(recipe: Recipe) -> None:
    for number, entry in enumerate(recipe.auxiliary):
        place, given = f"auxiliary.{number}", entry.objective or recipe.objective
        if entry.objective is not None:
            _check_part(f"{place}.objective", objectives, entry.objective, complete=True)
        if not issubclass(objective_registry.find(given["name"]), Objective):
            raise ConfigError(
                f"{place}.objective: {given['name']!r} takes no scores of pairs. Give one that does, e.g. "
                f"{{on: {entry.on}, objective: {{name: infonce}}}}."
            )
        if any(entry.on == other.on for other in recipe.auxiliary[:number]):
            raise ConfigError(f"{place}: there is an auxiliary loss on {entry.on} already. Add up their weights.")


def _check_global_vectors(recipe: Recipe, predictors: Predictors) -> None:
    if not any(entry.on == "global" for entry in recipe.auxiliary):
        return
    for side, cls, config in predictors:
        if not cls.makes_global_vector(config) and cls.set_size(config) != 1:
            raise ConfigError(
                f"auxiliary: on: global needs a global vector, and {side}.sets {config['name']!r} makes "
                f"{cls.set_size(config)} vectors and none for all. Take competing_readings, or leave it out."
            )


def _check_sets(recipe: Recipe, predictors: Predictors) -> None:
    image, text = (cls.set_size(config) for _, cls, config in predictors)
    if similarity_registry.find(recipe.similarity["name"]).single_vectors and (image, text) != (1, 1):
        fitting = [name for name in similarity.names() if not similarity_registry.find(name).single_vectors]
        raise ConfigError(
            f"similarity {recipe.similarity['name']} compares single vectors; this recipe makes sets of {image} and "
            f"{text}. Choose {', '.join(fitting[:-1])} or {fitting[-1]}."
        )
    for entry in recipe.regularisers:
        part = objective_registry.find(entry.name)
        if (image, text) == (1, 1) and issubclass(part, Regulariser) and part.needs_sets:
            raise ConfigError(f"The regulariser {entry.name} needs several vectors; here every set has one. Remove it.")
    for (name, side), (_, cls, config) in zip(recipe.sides(), predictors, strict=True):
        encoder = encoder_registry.find(side.encoder["name"])
        if recipe.dim == "global" and not encoder.makes_summary:
            raise ConfigError(
                f"dim=global is the width of the encoders' global feature, and {name}.encoder {side.encoder['name']!r} "
                "makes none. Give dim a number, --set dim=256."
            )
        if cls.adds_global(config) and side.pool is None and not encoder.makes_summary:
            raise ConfigError(
                f"{name}.sets {config['name']!r} adds a global feature, and the encoder {side.encoder['name']!r} makes "
                f"none. Give {name}.pool, e.g. --set {name}.pool.name=max."
            )


def _check_training(recipe: Recipe) -> None:
    places = {key: ["image", "text", "similarity"] for key in ("lr_scales", "frozen")}
    for name, side in recipe.sides():
        parts = [f"{name}.{part}" for part in PLACES if getattr(side, part) is not None]
        parts += [f"{name}.sets.base"] if side.sets.get("base") else []
        places["lr_scales"] += [*parts, *(f"{name}.encoder.{part}" for part in ("body", "head"))]
        places["frozen"] += parts
    for key, given in (("lr_scales", recipe.optimiser.lr_scales), ("frozen", recipe.optimiser.frozen or ())):
        for place in given:
            if place not in places[key]:
                raise unknown(f"place in optimiser.{key}", place, places[key])
    schedule, every = recipe.schedule, recipe.schedule.every is not None
    if schedule.name == "step" and bool(schedule.milestones) == every:
        raise ConfigError("schedule step takes either `milestones` or `every`: give one of them.")
    if schedule.name not in ("step", "compounding") and (schedule.milestones or every):
        raise ConfigError(f"schedule {schedule.name} takes neither `milestones` nor `every`: leave them out.")
    if schedule.name == "compounding" and not every:
        raise ConfigError("schedule compounding needs `every`.")
    if recipe.data.val in recipe.data.train:
        raise ConfigError(f"data.val={recipe.data.val} is also in data.train: validation would measure memory.")
    encoder = recipe.text.encoder["name"]
    if recipe.data.glove is not None and not encoder_registry.find(encoder).learns_vocabulary:
        raise ConfigError(f"data.glove is for an encoder that learns its words, not {encoder!r}. Leave it out.")
    if recipe.training.batch < 2:
        raise ConfigError("training.batch=1 leaves an image without negatives. Give at least 2.")
