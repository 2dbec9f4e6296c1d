"""The optimiser of a recipe: one group per place, each with its own learning rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from polysem.models import Model
from polysem.recipes.schema import Optimiser


def build(model: Model, recipe: Optimiser, beside: nn.Module | None = None) -> torch.optim.Optimizer:
    """Groups are named by place ("image.sets") and remember their full rate as `full_lr`. beside: what trains with the
    model and is no part of it."""
    groups = named_groups(model, recipe)
    if beside is not None:
        rates = {"lr": recipe.lr, "full_lr": recipe.lr, "weight_decay": recipe.weight_decay}
        groups.append({"name": "guessing", "params": list(beside.parameters()), **rates})
    kind = torch.optim.AdamW if recipe.name == "adamw" else torch.optim.Adam
    # One fused pass over all weights: several times as fast as the default.
    return kind(groups, lr=recipe.lr, fused=True)


def named_groups(model: Model, recipe: Optimiser) -> list[dict[str, Any]]:
    groups = []
    for side, tower in (("image", model.image), ("text", model.text)):
        for group in tower.parameter_groups(recipe.lr, recipe.weight_decay):
            groups.append({**group, "name": f"{side}.{group['name']}"})
    scorer = list(model.similarity.parameters())
    if scorer:
        groups.append({"name": "similarity", "params": scorer, "lr": recipe.lr, "weight_decay": recipe.weight_decay})
    seen: set[int] = set()
    for group in groups:
        # A part that both towers share is listed once.
        group["params"] = [p for p in group["params"] if id(p) not in seen]
        seen.update(id(p) for p in group["params"])
        group["lr"] *= scale_of(group["name"], recipe.lr_scales)
        group["full_lr"] = group["lr"]
    return [group for group in groups if group["params"]]


def scale_of(place: str, scales: dict[str, float]) -> float:
    """The scale of the longest listed place that `place` is or lies in."""
    fitting = [listed for listed in scales if place == listed or place.startswith(listed + ".")]
    return scales[max(fitting, key=len)] if fitting else 1.0
