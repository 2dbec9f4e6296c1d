"""A model by the name a user gives: of a folder, or of a recipe, untrained, where weights do not matter."""

from __future__ import annotations

from pathlib import Path

from polysem import encoders, recipes
from polysem.encoders import SourceError
from polysem.environment.shipped import SHIPPED
from polysem.errors import UnknownNameError, unknown
from polysem.models import Model, build, load
from polysem.models.folder import CONFIG
from polysem.recipes import Recipe
from polysem.sets.base import registry as set_registry

FROM_DATA = {"vocab_size": 10_000, "input_dim": 2048}
"""Knobs that training reads from the data, and what is assumed without: about the words of COCO's captions that occur
four times, and the width of bottom-up attention's regions."""
LABELS = 80
"""Classes, where data would tell: COCO's."""


def find_model(name: str) -> Model:
    """The model of this name, shipped or in a folder, or an untrained one of the recipe of this name or path."""
    path = Path(name).expanduser()
    is_recipe = name in recipes.names() or path.suffix in (".yaml", ".yml")
    if name in SHIPPED:
        return load(name)
    if (path / CONFIG).is_file() or (path.is_dir() and not is_recipe):
        return load(path)
    if not is_recipe:
        choices = unknown("recipe", name, recipes.names())
        raise UnknownNameError(f"{name!r} is no folder of a model: give one that `polysem train` made. {choices}")
    return untrained(recipes.load(name))


def untrained(recipe: Recipe) -> Model:
    """The recipe's model with random weights. `provenance["assumed"]` holds what only data could have told."""
    towers = {"image": recipe.image.tower(), "text": recipe.text.tower()}
    assumed: dict[str, int] = {}
    for side, tower in towers.items():
        encoder = tower["encoder"]
        known = {knob.name for knob in encoders.describe(encoder["name"]).knobs}
        for knob in known & (FROM_DATA.keys() - encoder.keys()):
            encoder[knob] = assumed[f"{side}.encoder.{knob}"] = FROM_DATA[knob]
        if "pretrained" in known:
            encoder["pretrained"] = False
        elif encoder.get("encoder") is not None:  # of a video's frames
            encoder["encoder"]["pretrained"] = False
        sets = tower["sets"]
        if sets != "shared" and set_registry.find(sets["name"]).classifies:
            sets.setdefault("labels", [f"class {number}" for number in range(LABELS)])
            assumed[f"{side}.sets.labels"] = len(sets["labels"])
    dim = assumed["image.sets.labels"] if recipe.dim == "labels" else recipe.dim
    try:
        model = build(dim, similarity=recipe.similarity, **towers)
    except SourceError as error:
        raise SourceError(f"The recipe {recipe.name} cannot be built. {error} Or give a model trained by it.") from None
    model.provenance = {"recipe": recipe.model_dump(mode="json"), "assumed": assumed}
    return model.eval()
