"""What an object can do in a moment, and where it is while it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from polysem.synthetic.scenes.backdrops import Footing, Zone

MARGIN = 0.02
"""Share of the picture's side that stays free at its edges: nothing that moves is ever cut off."""


@dataclass(frozen=True)
class Pose:
    """Where an object is at one instant, in shares of the picture's side.

    x: from its leftmost possible place (0) to its rightmost (1). lift: how far above its place it is. scale: of its
    size. mirrored: turned to the other side.
    """

    x: float
    lift: float = 0.0
    scale: float = 1.0
    mirrored: bool = False


@dataclass(frozen=True)
class Action:
    """phrases: what one says it does. footings: where it can be done, everywhere if empty. pose: at 0 to 1 of its time,
    for an object that stands at a random place."""

    name: str
    phrases: tuple[str, ...]
    pose: Callable[[float, float], Pose]
    footings: tuple[Footing, ...] = ()


def _smooth(t: float) -> float:
    """From 0 to 1, starting and ending gently."""
    return t * t * (3 - 2 * t)


ACTIONS = (
    Action(
        "left",
        ("moves to the left", "goes to the left", "slides left across the picture"),
        lambda t, _: Pose(1 - _smooth(t)),
    ),
    Action(
        "right",
        ("moves to the right", "goes to the right", "slides right across the picture"),
        lambda t, _: Pose(_smooth(t)),
    ),
    Action(
        "grow",
        ("grows", "gets bigger and bigger", "comes closer"),
        lambda t, x: Pose(x, scale=0.72 + 0.28 * _smooth(t)),
    ),
    Action(
        "shrink",
        ("shrinks", "gets smaller and smaller", "moves away"),
        lambda t, x: Pose(x, scale=1 - 0.28 * _smooth(t)),
    ),
    Action(
        "turn",
        ("turns around", "looks to both sides", "turns back and forth"),
        lambda t, x: Pose(x, mirrored=int(4 * t) % 2 == 1),
    ),
    Action("stay", ("stays where it is", "does not move", "is still"), lambda _, x: Pose(x)),
    Action(
        "jump",
        ("jumps up and down", "hops", "bounces"),
        lambda t, x: Pose(x, lift=0.12 * abs(math.sin(3 * math.pi * t))),
        ("ground",),
    ),
    Action(
        "rock",
        ("rocks on the waves", "bobs up and down", "drifts on the waves"),
        lambda t, x: Pose(x, lift=0.03 * math.sin(4 * math.pi * t)),
        ("water",),
    ),
    Action(
        "rise",
        ("rises", "floats upwards", "goes up"),
        lambda t, x: Pose(x, lift=0.24 * _smooth(t) - 0.12),
        ("air", "free"),
    ),
    Action(
        "sink",
        ("sinks", "floats downwards", "goes down"),
        lambda t, x: Pose(x, lift=0.12 - 0.24 * _smooth(t)),
        ("air", "free"),
    ),
)


def drawn(zone: Zone, turns: bool, rng: Random) -> Action:
    """An action for something in this zone. turns: whether its mirror image is as good as itself."""
    fitting = [
        action
        for action in ACTIONS
        if (not action.footings or zone.footing in action.footings) and (turns or action.name != "turn")
    ]
    return rng.choice(fitting)
