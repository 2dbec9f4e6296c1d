"""The learning rate as a pure function of the step, so that a resumed run has nothing to remember."""

from __future__ import annotations

import math

from polysem.recipes.schema import Schedule


def factor(schedule: Schedule, step: int, steps_per_epoch: int, total_steps: int) -> float:
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
        rate *= ramp(schedule, step, steps_per_epoch)
    return rate


def loss_factor(schedule: Schedule, step: int, steps_per_epoch: int) -> float:
    """What the loss is multiplied with: VSE∞'s released code ramps the loss where its paper speaks of the rate."""
    return ramp(schedule, step, steps_per_epoch) if schedule.ramp == "loss" else 1.0


def ramp(schedule: Schedule, step: int, steps_per_epoch: int) -> float:
    """From 0 to 1 through `ramp_epoch`, 1 elsewhere."""
    if schedule.ramp_epoch is None or step // steps_per_epoch != schedule.ramp_epoch:
        return 1.0
    return (step % steps_per_epoch) / steps_per_epoch


def is_warming(schedule: Schedule, step: int, steps_per_epoch: int) -> bool:
    """Whether the learning rate, or the loss, is still on its way up: nothing can be expected of such a step."""
    return step < schedule.warmup_steps or step // steps_per_epoch == schedule.ramp_epoch
