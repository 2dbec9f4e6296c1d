"""Starting from a model: parts that fit are taken over, what is new or differs is named; the recipe of fine-tuning."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polysem import models, recipes
from polysem.data import train_overlap
from polysem.data.collection import Collection
from polysem.encoders import Encoder
from polysem.errors import ConfigError, InputError
from polysem.models import Model
from polysem.models.model import WITHOUT_EFFECT
from polysem.recipes import Recipe
from polysem.recipes.loading import BACKBONE_SCALE, override_content, parse
from polysem.registry import Part
from polysem.training.distillation import training_items
from polysem.training.monitoring.diagnosis import TrainingFinding

LAST_LAYERS = 1
"""Of each body, what trains where a model has nothing but frozen bodies, as a dual encoder has."""
GROW_RATE, GROW_EPOCHS = 4e-3, 8
"""Of new elements, which have further to go than weights that were trained."""
COLDEST = 0.01
"""The lowest temperature of fine-tuning: that of CLIP."""


@dataclass(frozen=True)
class StartReport:
    """What a model has of its start.

    taken: places of parts, such as "image.encoder". changed: by place, settings of those that differ. new: by place,
    why it is not taken.
    """

    taken: tuple[str, ...]
    changed: Mapping[str, str]
    new: Mapping[str, str]

    def __str__(self) -> str:
        def listed(parts: Mapping[str, str]) -> str:
            return "; ".join(f"{place} ({why})" for place, why in parts.items())

        changed = f" With other settings: {listed(self.changed)}." if self.changed else ""
        return f"Taken over: {', '.join(self.taken) or 'nothing'}.{changed} New: {listed(self.new) or 'nothing'}."


def load_start(start: str, earlier: Mapping[str, Any] | None = None) -> Model:
    """The model to start from. earlier: run.json of a run that is resumed, which must have begun from the same one."""
    if start in recipes.names():
        raise ConfigError(
            f"start={start} is a recipe; a start is a trained model. Train it (polysem train {start} --data … --out "
            "RUN) and give its folder, or a model by name such as polysem/photo-small."
        )
    model = models.load(start)
    began = (earlier or {}).get("start", {}).get("fingerprint")
    if began not in (None, model.fingerprint()):
        raise InputError(
            f"start={start} is another model ({model.fingerprint()[:12]}) than the one that this run began from "
            f"({began[:12]}). Put that one back, or give another --out."
        )
    return model


def start_from(model: Model, source: Model, start: str, val: Collection) -> list[TrainingFinding]:
    """Take over what fits, and say what was taken and whether the start knows the validation items.

    Raises:
        ConfigError: nothing with weights fits.
    """
    parts, report = model.parts(), take_over(model, source)
    holders = [parts[".".join(place.split(".")[:2])] for place in report.taken]
    if not any(part.state_dict() for part in holders):
        raise ConfigError(
            f"start={start} has no weights that this recipe can use. {report} Choose a recipe with the parts of the "
            f"start, or train the start itself further: polysem finetune {start} --data … --out RUN."
        )
    advice = "The start is validated first and competes for the best."
    findings = [TrainingFinding("started from a model", f"Started from {start}. {report}", advice, 0)]
    share = train_overlap.estimate_overlap(training_items(source), val)
    if share > 0:
        says = f"{start} was trained on {share:.0%} of the validation items: figures on them flatter, the start's most."
        findings.append(TrainingFinding("known validation items", says, "Validate on pictures that it never saw.", 0))
    return findings


def take_over(model: Model, source: Model) -> StartReport:
    """Give a model the weights, vocabulary and tokenizer of every part that the source has alike.

    Of an encoder with another head the body is taken; of a set predictor that is built around another, that one.
    """
    taken: list[str] = []
    changed, new, theirs = dict[str, str](), dict[str, str](), source.parts()
    for place, part in model.parts().items():
        other = theirs.get(place)
        if other is None:
            new[place] = "the start has none"
            continue
        why, base = _find_difference(part, other), getattr(part, "base", None)
        if why is None:
            part.load_state_dict(other.state_dict())
            _take_preprocessing(part, other)
            taken.append(place)
            if settings := _list_settings(part, other):
                changed[place] = settings
        elif isinstance(base, Part) and _find_difference(base, other) is None:
            base.load_state_dict(other.state_dict())
            taken.append(f"{place}.base")
            new[place] = f"{part.registered_name} around it"
        elif isinstance(part, Encoder) and isinstance(other, Encoder) and _have_same_body(part, other):
            part.body.load_state_dict(other.body.state_dict())
            _take_preprocessing(part, other)
            taken.append(f"{place}.body")
            new[place] = why
        else:
            new[place] = why
    return StartReport(tuple(taken), changed, new)


def _find_difference(part: Part, other: Part) -> str | None:
    """Why the weights of the one cannot be those of the other; None where they can."""
    if other.config["name"] != part.config["name"]:
        return f"{other.registered_name} in the start, {part.registered_name} here"
    if isinstance(other, Encoder) and other.learns_vocabulary and getattr(other, "vocabulary", None) is None:
        return "the start has no vocabulary: import it with --vocabulary"
    own, state = part.state_dict(), other.state_dict()
    differ = [name for name in {**own, **state} if _shape(own, name) != _shape(state, name)]
    if differ:
        return f"{differ[0]} is {_shape(state, differ[0])} in the start, {_shape(own, differ[0])} here"
    return None


def _shape(state: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    return tuple(state[name].shape) if name in state else None


def _have_same_body(part: Encoder, other: Encoder) -> bool:
    own, state = part.body.state_dict(), other.body.state_dict()
    same_network = part.config.get("backbone_config") == other.config.get("backbone_config")
    return part.body is not part and same_network and all(_shape(own, n) == _shape(state, n) for n in {**own, **state})


def _take_preprocessing(part: Part, other: Part) -> None:
    if isinstance(part, Encoder) and isinstance(other, Encoder):
        with tempfile.TemporaryDirectory() as folder:
            other.save_preprocessing(Path(folder))
            if any(Path(folder).iterdir()):
                part.load_preprocessing(Path(folder))


def _list_settings(part: Part, other: Part) -> str:
    """The knobs that change what the same weights compute, and differ."""
    ignored = part.without_effect if isinstance(part, Encoder) else WITHOUT_EFFECT
    own, theirs = dict(part.config), dict(other.config)
    differ = [knob for knob in own if knob not in ignored and own[knob] != theirs.get(knob)]
    return ", ".join(f"{knob}={theirs.get(knob)} in the start, {own[knob]} here" for knob in differ)


def finetune_recipe(model: Model, start: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe that goes on training a model on other data: its own parts, InfoNCE, a low rate, a few epochs.

    What stands behind frozen encoders trains. Of a model that is nothing but frozen encoders, as a dual encoder is,
    the last layer of each and all behind it train, at a tenth of the rate.

    Args:
        start: the folder or name of the model.
        overrides: KEY=VALUE, as `--set` takes them; `image.encoder.trainable=2` trains the last two layers of a body.
    """
    content = _describe(model, start, "finetune", "trained further")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        for side in ("image", "text"):
            content[side]["encoder"] = {**content[side]["encoder"], "trainable": LAST_LAYERS}
    return parse(override_content(content, overrides))


def grow_recipe(
    model: Model, start: str, k: int = 4, train_base: bool = False, overrides: Iterable[str] = ()
) -> Recipe:
    """The recipe that gives the images of a single-vector model sets: k elements that begin exactly at its own vector.

    The elements are competing readings around the vector (gamma = 0 at first), compared with a text's one vector by
    the soft maximum: before the first step the ranking is the model's own.

    Args:
        start: the folder or name of the model.
        train_base: whether the model learns beside them, at a tenth of their rate; by default it is frozen.
        overrides: KEY=VALUE, as `--set` takes them.

    Raises:
        ConfigError: the model makes several vectors already, or its vectors are labels.
    """
    if model.set_sizes != (1, 1):
        sizes = "{} vectors of an image and {} of a text".format(*model.set_sizes)
        raise ConfigError(
            f"{start} makes {sizes}: grow takes a model of one vector each. Train this one further with polysem "
            "finetune, or grow a member of it before joining."
        )
    if model.labels is not None:
        raise ConfigError(f"{start} classifies, which sets around its vector do not. Grow a model that learned pairs.")
    content, encoder = _describe(model, start, "grow", f"with {k} elements around its vector"), model.image.encoder
    base = model.image.sets.config
    if content["text"]["sets"] == {"name": "shared"}:
        content["text"]["sets"] = base
    cells = encoder.tokens_per_item if encoder.tiles_image else None
    content["image"]["sets"] = {"name": "competing_readings", "k": k, "base": base, "cells": cells, "gamma": 0.0}
    content["similarity"] = {"name": "soft_maximum"}
    content["optimiser"]["lr"], content["training"]["epochs"] = GROW_RATE, GROW_EPOCHS
    own = [f"image.{part}" for part in ("project", "pool") if content["image"][part] is not None]
    if train_base:
        slow = [*own, "image.sets.base", "text", *(["image.encoder.head"] if _has_head(encoder) else [])]
        content["optimiser"]["lr_scales"] = dict.fromkeys(slow, BACKBONE_SCALE)
    else:
        content["optimiser"]["frozen"] = [*own, "image.encoder", "image.sets.base", "text"]
        for side in ("image", "text"):
            config = content[side]["encoder"]
            if config.get("trainable") not in (None, "none") and getattr(model, side).encoder.takes != "features":
                content[side]["encoder"] = {**config, "trainable": "none"}
    return parse(override_content(content, overrides))


def _has_head(encoder: Encoder) -> bool:
    return any(group["name"] == "head" for group in encoder.parameter_groups(1.0))


def _describe(model: Model, start: str, name: str, what: str) -> dict[str, Any]:
    """A recipe with the parts of a model, as plain data."""
    encoder = model.text.encoder
    if encoder.learns_vocabulary and getattr(encoder, "vocabulary", None) is None:
        raise ConfigError(f"{start} has no vocabulary: its words are unknown. Import it again with --vocabulary.")
    sides = {}
    for side in ("image", "text"):
        config = dict(model.config[side])
        if config["sets"] == "shared":
            config["sets"] = {"name": "shared"}
        config["encoder"] = {knob: value for knob, value in config["encoder"].items() if knob != "lr_scale"}
        sides[side] = config
    scale = model.similarity.config.get("logit_scale")
    return {
        "name": name,
        "summary": f"{start}, {what}",
        "start": start,
        "dim": model.dim,
        **sides,
        "similarity": dict(model.similarity.config),
        "objective": {"name": "infonce", "temperature": max(COLDEST, 1 / scale) if scale else 0.03},
        "optimiser": {"name": "adamw", "lr": 3e-4, "weight_decay": 1e-4, "clip": 2.0},
        "schedule": {"name": "cosine", "warmup_steps": 10},
        "training": {"epochs": 4, "batch": 64, "captions": "all"},
    }
