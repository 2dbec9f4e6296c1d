"""The optimiser of a recipe, one parameter group per part, and the learning rate as a pure function of the step.

A resumed run has nothing to remember of a schedule.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from polysem.models import Model
from polysem.recipes.schema import Optimiser, Schedule


def build_optimiser(model: Model, recipe: Optimiser, heads: nn.Module | None = None) -> torch.optim.Optimizer:
    """Groups are named by part ("image.sets") and remember their full learning rate as `full_lr`. heads: of masked
    modelling, which train beside the model."""
    groups: list[dict[str, Any]] = []
    for side, tower in (("image", model.image), ("text", model.text)):
        for group in tower.parameter_groups(recipe.lr, recipe.weight_decay):
            groups.append({**group, "name": f"{side}.{group['name']}"})
    for name, part in (("similarity", model.similarity), ("masked_modelling", heads)):
        if part is not None:
            rates = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
            groups.append({"name": name, "params": list(part.parameters()), **rates})
    seen: set[int] = set()
    for group in groups:
        # A part that both towers share is listed once.
        group["params"] = [p for p in group["params"] if id(p) not in seen]
        seen.update(id(p) for p in group["params"])
        # The scale of the longest listed name that this part is or lies in.
        fitting = [name for name in recipe.lr_scales if f"{group['name']}.".startswith(f"{name}.")]
        group["lr"] *= recipe.lr_scales[max(fitting, key=len)] if fitting else 1.0
        group["full_lr"] = group["lr"]
    groups = [group for group in groups if group["params"]]
    kind = torch.optim.AdamW if recipe.name == "adamw" else torch.optim.Adam
    # One fused pass over all weights: several times as fast as the default.
    return kind(groups, lr=recipe.lr, fused=True)


def lr_factor(schedule: Schedule, step: int, steps_per_epoch: int, total_steps: int) -> float:
    """What the learning rate is multiplied with at optimiser step `step`, from 0."""
    epoch = step // steps_per_epoch
    rate = 1.0
    if schedule.name == "step":
        if schedule.every is not None:
            rate = schedule.gamma ** (epoch // schedule.every)
        else:
            rate = schedule.gamma ** sum(epoch >= milestone for milestone in schedule.milestones)
    elif schedule.name == "compounding" and schedule.every is not None:
        rate = schedule.gamma ** sum(past // schedule.every for past in range(epoch + 1))
    elif schedule.name == "cosine":
        done = (step - schedule.warmup_steps) / max(1, total_steps - schedule.warmup_steps)
        rate = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, done))))
    if step < schedule.warmup_steps:
        rate *= (step + 1) / schedule.warmup_steps
    if schedule.ramp == "lr":
        rate *= _ramp(schedule, step, steps_per_epoch)
    return rate


def loss_factor(schedule: Schedule, step: int, steps_per_epoch: int) -> float:
    """What the loss is multiplied with: VSE∞'s released code ramps the loss where its paper speaks of the rate."""
    return _ramp(schedule, step, steps_per_epoch) if schedule.ramp == "loss" else 1.0


def is_warming(schedule: Schedule, step: int, steps_per_epoch: int) -> bool:
    """Whether the learning rate, or the loss, is still on its way up: nothing can be expected of such a step."""
    return step < schedule.warmup_steps or step // steps_per_epoch == schedule.ramp_epoch


def _ramp(schedule: Schedule, step: int, steps_per_epoch: int) -> float:
    """From 0 to 1 through `ramp_epoch`, 1 elsewhere."""
    if schedule.ramp_epoch is None or step // steps_per_epoch != schedule.ramp_epoch:
        return 1.0
    return (step % steps_per_epoch) / steps_per_epoch
