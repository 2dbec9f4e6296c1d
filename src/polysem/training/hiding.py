"""Whether a recipe hides tokens to have them guessed, and if so, what that takes."""

from __future__ import annotations

from typing import cast

import torch

from polysem import objectives
from polysem.data.collection import Collection
from polysem.data.store import FeatureStore
from polysem.encoders import TextEncoder
from polysem.models import Model
from polysem.recipes import Recipe
from polysem.training.blanks import Blanking
from polysem.training.guessing import Guessing


def hiding(
    recipe: Recipe, model: Model, train: Collection, images: FeatureStore | None
) -> tuple[Blanking | None, Guessing | None]:
    """What hides tokens, and the heads that guess them; None for both where the objective gives it no weight.

    images: the store of the images' features, where their encoder is frozen.
    """
    objective = objectives.build(**recipe.objective)
    if not getattr(objective, "hidden_weight", 0.0):
        return None, None
    blanking = Blanking(cast(TextEncoder, model.text.encoder), train.captions, recipe.training.seed)
    features = int(images.dim if images is not None else model.image.encoder.config["input_dim"])
    widths = int(model.image.sets.input_dim or 0), int(model.text.sets.input_dim or 0)
    torch.manual_seed(recipe.training.seed)
    guessing = Guessing(widths, len(blanking.words), features, str(objective.config.get("variant", "paper")))
    return blanking, guessing.to(model.device)
