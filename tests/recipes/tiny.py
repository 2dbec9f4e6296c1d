"""Recipes at the size of a test: the same parts with a few units each, without dropout, and inputs to feed them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from encoders.tiny_models import TINY_RESNET, TINY_TEXT, TINY_VIT
from polysem import LocalFeatures, models
from polysem.encoders import Tokens
from polysem.models import Model
from polysem.recipes import Recipe, TowerRecipe

DIM, REGION, PIXELS, WORDS = 8, 10, 16, 19
RESNET = {"model_type": "resnet", **TINY_RESNET}
VIT = {"model_type": "vit", **TINY_VIT, "image_size": PIXELS, "patch_size": 8, "hidden_dropout_prob": 0.0}
BERT = {"model_type": "bert", **TINY_TEXT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

_HALVES = transformers.CLIPConfig(text_config=TINY_TEXT, vision_config=VIT, projection_dim=DIM)
CLIP = {"model": "clip", "pretrained": False, "backbone_config": {**_HALVES.to_dict(), "model_type": "clip"}}
SQUARE = {"height": PIXELS, "width": PIXELS}
PROCESSOR = {"image_processor_type": "CLIPImageProcessor", "size": SQUARE, "crop_size": SQUARE}

ENCODERS: dict[str, dict[str, Any]] = {
    "region": {"input_dim": REGION},
    "frames": {"input_dim": REGION},
    "grid": {"pretrained": False, "backbone_config": RESNET, "image_size": PIXELS},
    "grids": {
        "models": ["one", "another"],
        "sizes": [PIXELS, 8],
        "cells": 2,
        "pretrained": False,
        "backbone_config": {"grids": [RESNET, {**RESNET, "hidden_sizes": [8, 10]}]},
    },
    "patch": {"pretrained": False, "backbone_config": VIT},
    "transformer": {"pretrained": False, "backbone_config": BERT},
    "dual_image": {**CLIP, "processor": PROCESSOR},
    "dual_text": CLIP,
    "bigru": {"vocab_size": WORDS, "word_dim": 6},
}
ENCODERS["onnx"] = {"name": "grid", **ENCODERS["grid"]}  # both a frozen map of cells; what is tested comes after it
FRAMES = 4
ENCODERS["video_frames"] = {"encoder": {"name": "grid", **ENCODERS["grid"]}, "frames": FRAMES}
CELLS = {"grid": 4, "grids": 4, "patch": 5, "video_frames": FRAMES}
"""Local features of a picture at this size."""
SETS: dict[str, dict[str, Any]] = {name: {"heads": 2, "head_dim": 4, "ff_mult": 2} for name in ("slots", "transformer")}
SETS["competing_readings"] = {"hidden": 6}
SETS["attention_pooling"] = {"hidden": 6, "attention": 4}


LABELLED = ("semantic_sharing", "dscmr")
WIDTH = int(TINY_TEXT["hidden_size"])
"""Of what such a part reads: it may have started from a text model."""


def _labelled(config: dict[str, Any], learns: bool) -> dict[str, Any]:
    """The same side at the width of a test, with as many labels as vectors are wide."""
    if not learns:
        return config
    for part in ("encoder", "project"):
        if config[part] and "dim" in config[part]:
            config[part] = {**config[part], "dim": WIDTH}
    sets = config["sets"]
    if sets["name"] in LABELLED:
        sets = {**sets, "input_dim": WIDTH, "labels": [f"label {n}" for n in range(DIM)]}
        if sets.pop("start", None):
            sets = {**sets, "backbone_config": BERT, "layers": 2, "heads": 2, "ff": 24}
        elif sets["name"] == "semantic_sharing":
            sets = {**sets, "layers": 2, "heads": 2, "ff": 6}
    return {**config, "sets": "shared" if sets["name"] == "shared" else sets}


def _side(side: TowerRecipe, learns: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "encoder": {**side.encoder, **ENCODERS[side.encoder["name"]]},
        "project": side.project,
        "pool": side.pool,
        "local": side.local,
        "sets": {**side.sets, **SETS.get(side.sets["name"], {})},
    }
    if config["encoder"].get("grid"):
        config["encoder"] |= {"grid": 2, "backbone_config": {**VIT, "patch_size": 4}}  # of 4 x 4 patches
    if config["sets"].get("cells"):
        config["sets"]["cells"] = CELLS[side.encoder["name"]]
    for part in ("encoder", "project", "sets"):
        if config[part] and "dropout" in config[part]:
            config[part] = {**config[part], "dropout": 0.0}
    return _labelled(config, learns)


def shrunk(recipe: Recipe) -> dict[str, Any]:
    """The arguments of `models.build`, with a few units in place of hundreds."""
    learns = recipe.image.sets["name"] in LABELLED
    sides = {"image": _side(recipe.image, learns), "text": _side(recipe.text, learns)}
    return {"dim": DIM, **sides, "similarity": recipe.similarity}


def maths(recipe: Recipe) -> str:
    """All of a recipe that decides its loss and gradients for a given batch. Recipes of equal maths are one case."""
    config = shrunk(recipe)
    for side in ("image", "text"):
        encoder = config[side]["encoder"]
        config[side]["encoder"] = {k: v for k, v in encoder.items() if k not in ("model", "lr_scale", "image_size")}
    drops = [recipe.image.augment.drop != "none", recipe.text.augment.drop != "none"]
    regularisers = [entry.model_dump() for entry in recipe.regularisers]
    auxiliary = [entry.model_dump() for entry in recipe.auxiliary]
    loss = [recipe.objective, regularisers, auxiliary, recipe.training.captions, drops]
    return json.dumps([config, loss], sort_keys=True)


def build(recipe: Recipe) -> Model:
    """The shrunk model in training mode and double precision, with no weight left at 0 or 1."""
    torch.manual_seed(0)
    model = models.build(**shrunk(recipe)).double().train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("image.", "text.")):
                parameter.add_(0.2 * torch.randn_like(parameter))
    for tower in (model.image, model.text):
        if "slots" in tower.sets.config["name"]:
            tower.sets.eval()  # slots that are not learned are drawn anew in training, and here from a fixed draw
    return model


@dataclass(frozen=True)
class Batch:
    """The same inputs twice: padded together, and item by item."""

    images: Tensor | LocalFeatures
    texts: Tokens
    keep: tuple[Tensor | None, Tensor | None]
    each_image: list[Tensor]
    each_text: list[list[int]]
    positives: Tensor
    labels: tuple[Tensor, Tensor]


def batch(recipe: Recipe) -> Batch:
    """Items of unequal length; several texts for an image where the recipe takes several; tokens dropped where it does.

    (Dropping is for features made by an encoder: precomputed ones are simply given without those dropped.)
    """
    generator = torch.Generator().manual_seed(1)
    captions = 1 if recipe.training.captions == "one" else 2
    # AdOpt never takes fewer than four negatives: more items, so that it has a choice.
    images = 3 if captions > 1 else 8 if recipe.objective["name"] == "adopt" else 5
    texts = images * captions
    each_text = [
        torch.randint(1, WORDS, (int(n),), generator=generator).tolist()
        for n in torch.randint(2, 7, (texts,), generator=generator)
    ]
    lengths = torch.randint(2, 6, (images,), generator=generator).tolist()
    given: Tensor | LocalFeatures
    if recipe.image.encoder["name"] in ("region", "frames"):
        each_image = [torch.randn(n, REGION, generator=generator, dtype=torch.double) for n in lengths]
        given = LocalFeatures.from_list(each_image)
    else:
        frames = [FRAMES] if recipe.image.encoder["name"] == "video_frames" else []
        each_image = list(torch.randn(images, *frames, 3, PIXELS, PIXELS, generator=generator, dtype=torch.double))
        given = torch.stack(each_image)
    tokens = Tokens.from_lists(each_text)
    cells = CELLS.get(recipe.image.encoder["name"])
    keep_image = _keep(images, cells, generator) if cells and recipe.image.augment.drop != "none" else None
    keep_text = _keep(texts, tokens.ids.shape[1], generator) if recipe.text.augment.drop != "none" else None
    positives = torch.arange(images)[:, None] == torch.arange(texts)[None] // captions
    flags = (torch.rand(images, DIM, generator=generator) < 0.3).double()
    labels = flags, flags[torch.arange(texts) // captions]
    return Batch(given, tokens, (keep_image, keep_text), each_image, each_text, positives, labels)


def _keep(items: int, tokens: int, generator: torch.Generator) -> Tensor:
    keep = torch.rand(items, tokens, generator=generator) > 0.3
    keep[:, 0] = True
    return keep
