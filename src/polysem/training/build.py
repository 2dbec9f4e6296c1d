"""From a recipe and a collection to a model: its vocabulary, feature width, labels and first weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from polysem import models
from polysem.data.collection import Collection, load_features
from polysem.data.vocabulary import Vocabulary, load_glove
from polysem.encoders import TextEncoder, encoder_kind, encoder_takes
from polysem.encoders.base import registry as encoder_registry
from polysem.errors import ConfigError, InputError
from polysem.models import Model
from polysem.models.build import global_width
from polysem.objectives import LabelObjective, registry
from polysem.recipes import Recipe
from polysem.sets.base import registry as set_registry


def build_model(recipe: Recipe, train: Collection, start: Model | None = None) -> Model:
    """An untrained model as the recipe asks for it; the same weights for the same seed.

    start: a model to start from, whose words are kept where the recipe's encoder learns its vocabulary too.

    Raises:
        InputError: the collection is of another kind than the recipe takes, or has no labels to learn.
        ConfigError: the recipe states a width that the data does not have.
    """
    image, text = recipe.image.tower(), recipe.text.tower()
    _check_content(recipe, train)
    if encoder_takes(image["encoder"]["name"]) == "features":
        width = load_features(train[0].media).shape[1]
        if image["encoder"].setdefault("input_dim", width) != width:
            raise ConfigError(
                f"image.encoder.input_dim={image['encoder']['input_dim']}, but the features of {train.name} have width "
                f"{width}. Leave it out: it is read from the data."
            )
    dim = recipe.dim
    sets_of_sides = [side["sets"] for side in (image, text) if side["sets"] != "shared"]
    classifying = [sets for sets in sets_of_sides if set_registry.find(sets["name"]).classifies]
    if classifying:
        names = classifying[0].get("labels") or train.label_names
        if not names:
            raise InputError(
                f"{train.name} has no labels to learn from. Give it a table captions.csv or captions.jsonl with a "
                "column `labels`, put COCO's instances_*.json beside its captions, take the names of subfolders with "
                "--folder-labels, or choose a recipe that learns from pairs."
            )
        for sets in classifying:
            sets.setdefault("labels", names)
        dim = len(names) if dim == "labels" else dim
    if dim == "global":
        dim = global_width(image["encoder"])
    vocabulary = None
    if encoder_registry.find(text["encoder"]["name"]).learns_vocabulary:
        known = None if start is None else getattr(start.text.encoder, "vocabulary", None)
        vocabulary = known or Vocabulary.build(train.captions, recipe.data.min_count)
        text["encoder"].setdefault("vocab_size", len(vocabulary))
    torch.manual_seed(recipe.training.seed)
    model = models.build(int(dim), image, text, recipe.similarity)
    for place in recipe.optimiser.frozen or ():
        model.get_submodule(place).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "Nothing of this model trains: all that has weights is frozen. Train the encoders' last layers, --set "
            "image.encoder.trainable=1 --set text.encoder.trainable=1, or take a place out of optimiser.frozen."
        )
    if learns_labels(recipe) and recipe.objective.get("variant", "paper") == "paper" and model.labels:
        # Labels are rare: from even odds, the first epochs would teach that and nothing else.
        for tower in (model.image, model.text):
            tower.sets.initialise_frequencies(label_matrix(train, model.labels).mean(0))
    if vocabulary is not None:
        source = recipe.data.glove
        vectors = None if source is None else load_glove(vocabulary, None if source == "package" else Path(source))
        cast(TextEncoder, model.text.encoder).set_vocabulary(vocabulary, vectors)
    return model


def learns_labels(recipe: Recipe) -> bool:
    """Whether the objective is about labels rather than pairs."""
    return issubclass(registry.find(recipe.objective["name"]), LabelObjective)


def label_matrix(collection: Collection, labels: Sequence[str]) -> Tensor:
    """(items, classes): 1 where an item has the label. Labels outside the classes do not count."""
    columns = {label: column for column, label in enumerate(labels)}
    matrix = torch.zeros(len(collection), len(columns))
    for row, item in zip(matrix, collection, strict=True):
        row[[columns[label] for label in item.labels if label in columns]] = 1.0
    return matrix


def _check_content(recipe: Recipe, train: Collection) -> None:
    """Raise unless the collection holds what the image encoder takes."""
    name = recipe.image.encoder["name"]
    from_features, of_videos = encoder_takes(name) == "features", encoder_kind(name) == "video"
    takes = "features" if from_features else "videos" if of_videos else "pictures"
    if takes == train.content:
        return
    made, content = "a .npy of frames for each video" if of_videos else "SCAN's *_ims.npy", str(train.content)
    needs = f"precomputed features ({made})" if from_features else takes
    fitting = "semantic-sharing" if learns_labels(recipe) else "vse-infty"
    remedy = (
        f"Choose a recipe that fits (`polysem recipes`), e.g. small-{fitting} for pictures, {fitting} for regions, "
        "small-vse-infty-video for videos."
    )
    if from_features and of_videos and content == "videos":
        content = "video files"
        remedy = "Add --set image.encoder.name=video_frames to read them as they are, or choose small-vse-infty-video."
    raise InputError(f"The recipe {recipe.name} takes {needs}, and {train.name} is a collection of {content}. {remedy}")
