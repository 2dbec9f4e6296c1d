"""Starting from a model: parts that fit are taken over, what is new or differs is named; the recipe of fine-tuning."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polysem.encoders import Encoder
from polysem.models import Model
from polysem.recipes import Recipe
from polysem.recipes.loading import override_content, parse

BACKBONE_SCALE = 0.1
"""The learning rate of a pretrained body, where it trains, beside that of what stands behind it."""


@dataclass(frozen=True)
class StartReport:
    """What a model has of its start. taken: places of parts, such as "image.encoder". new: by place, why it is not."""

    taken: tuple[str, ...]
    new: Mapping[str, str]

    def __str__(self) -> str:
        new = "; ".join(f"{place} ({why})" for place, why in self.new.items())
        return f"Taken over: {', '.join(self.taken) or 'nothing'}. New: {new or 'nothing'}."


def take_over(model: Model, source: Model) -> StartReport:
    """Give a model the weights, vocabulary and tokenizer of every part that the source has alike."""
    taken, new, theirs = [], {}, source.parts()
    for place, part in model.parts().items():
        other, own = theirs.get(place), part.state_dict()
        if other is None:
            new[place] = "the start has none"
        elif other.config["name"] != part.config["name"]:
            new[place] = f"{other.config['name']} in the start, {part.config['name']} here"
        else:
            state = other.state_dict()
            differ = [name for name in {**own, **state} if _shape(own, name) != _shape(state, name)]
            if differ:
                new[place] = f"{differ[0]} is {_shape(state, differ[0])} in the start, {_shape(own, differ[0])} here"
                continue
            part.load_state_dict(state)
            if isinstance(part, Encoder) and isinstance(other, Encoder):
                with tempfile.TemporaryDirectory() as folder:
                    other.save_preprocessing(Path(folder))
                    if any(Path(folder).iterdir()):
                        part.load_preprocessing(Path(folder))
            taken.append(place)
    return StartReport(tuple(taken), new)


def _shape(state: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    return tuple(state[name].shape) if name in state else None


def finetune_recipe(model: Model, start: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe that goes on training a model on other data: its own parts, InfoNCE, a low rate, a few epochs.

    Args:
        start: the folder or name of the model.
        overrides: KEY=VALUE, as `--set` takes them; `image.encoder.trainable=2` trains the last two layers of a body.
    """
    sides = {}
    for side in ("image", "text"):
        config = dict(model.config[side])
        if config["sets"] == "shared":
            config["sets"] = {"name": "shared"}
        config["encoder"] = {**config["encoder"], "lr_scale": BACKBONE_SCALE}
        sides[side] = config
    content: dict[str, Any] = {
        "name": "finetune",
        "summary": f"{start}, trained further",
        "start": start,
        "dim": model.dim,
        **sides,
        "similarity": dict(model.similarity.config),
        "objective": {"name": "infonce", "temperature": 0.05},
        "optimiser": {"name": "adamw", "lr": 1e-4, "weight_decay": 1e-4, "clip": 2.0},
        "schedule": {"name": "cosine", "warmup_steps": 10},
        "training": {"epochs": 8, "batch": 64, "captions": "all"},
    }
    return parse(override_content(content, overrides))
