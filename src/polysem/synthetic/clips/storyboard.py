"""Which objects a clip shows, one after the other, what each of them does, and what one says of it.

A clip of the val or test split shows only kinds that earlier train clips have shown. Clip i depends on the seed and on
the clips before it, never on how many follow: a larger set begins with the smaller one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from polysem.synthetic.scenes import catalogue
from polysem.synthetic.scenes.scene import Split, choose_split, item_rng

Colour = Callable[[str], str | None]

_SEQUENCES = ("first {0}, then {1}", "{0}, and after that {1}", "{0} before {1}", "{0}; later {1}")
_ENUMERATIONS = ("{0} appear one after the other {1}", "{0} can be seen in turn {1}", "a clip of {0} {1}")

MOMENTS = (3, 4)
SECONDS = (2.0, 2.25, 2.5)
"""How long a moment lasts; multiples of a frame at `FPS`."""
FPS = 8
MARGIN = 0.02
"""Share of the picture's side that stays free at its edges: nothing that moves is ever cut off."""


@dataclass(frozen=True)
class Pose:
    """Where an object is at one instant, in shares of the picture's side. x: from its leftmost possible place (0) to
    its rightmost (1). lift: how far above its place it is. scale: of its size. mirrored: turned to the other side."""

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
    footings: tuple[catalogue.Footing, ...] = ()


def _smooth(t: float) -> float:
    """From 0 to 1, with a slow start and end."""
    return t * t * (3 - 2 * t)


_POSES: dict[str, Callable[[float, float], Pose]] = {
    "left": lambda t, _: Pose(1 - _smooth(t)),
    "right": lambda t, _: Pose(_smooth(t)),
    "grow": lambda t, x: Pose(x, scale=0.72 + 0.28 * _smooth(t)),
    "shrink": lambda t, x: Pose(x, scale=1 - 0.28 * _smooth(t)),
    "turn": lambda t, x: Pose(x, mirrored=int(4 * t) % 2 == 1),
    "stay": lambda _, x: Pose(x),
    "jump": lambda t, x: Pose(x, lift=0.12 * abs(math.sin(3 * math.pi * t))),
    "rock": lambda t, x: Pose(x, lift=0.03 * math.sin(4 * math.pi * t)),
    "rise": lambda t, x: Pose(x, lift=0.24 * _smooth(t) - 0.12),
    "sink": lambda t, x: Pose(x, lift=0.12 - 0.24 * _smooth(t)),
}
ACTIONS = tuple(
    Action(name, tuple(entry["phrases"]), _POSES[name], tuple(entry.get("footings", ())))
    for name, entry in catalogue.load_table("actions.yaml").items()
)


@dataclass(frozen=True)
class ClipMoment:
    """What happens in one moment. place: where between its leftmost and its rightmost place the object is, and depth:
    how far down in its zone, both from 0 to 1. frames: how long it takes."""

    kind: catalogue.ObjectKind
    glyph: str
    zone: catalogue.Zone
    action: Action
    mirrored: bool
    place: float
    depth: float
    frames: int


@dataclass(frozen=True)
class ClipPlan:
    """What clip `index` shows."""

    index: int
    split: Split
    backdrop: catalogue.Backdrop
    moments: tuple[ClipMoment, ...]

    @property
    def name(self) -> str:
        return f"clip_{self.index:05d}"

    def spans(self) -> list[tuple[float, float]]:
        """Start and end of each moment in seconds."""
        ends = [sum(moment.frames for moment in self.moments[: n + 1]) / FPS for n in range(len(self.moments))]
        return list(zip([0.0, *ends[:-1]], ends, strict=True))


def plan_clips(kinds: Sequence[catalogue.ObjectKind], items: int, seed: int) -> Iterator[ClipPlan]:
    """Plan the first `items` clips."""
    shown: Counter[catalogue.ObjectKind] = Counter()
    for index in range(items):
        split, rng = choose_split(index), item_rng("emoji-clips", seed, index, "cast")
        pool = kinds if split == "train" else [kind for kind in kinds if shown[kind]]
        plan = None
        while plan is None:
            plan = _draw_plan(index, split, pool, shown, rng)
        if split == "train":
            shown.update(moment.kind for moment in plan.moments)
        yield plan


def _draw_plan(
    index: int, split: Split, pool: Sequence[catalogue.ObjectKind], shown: Counter[catalogue.ObjectKind], rng: Random
) -> ClipPlan | None:
    """One draw; None when the backdrop leaves too few kinds to choose from."""
    backdrop = rng.choices(catalogue.BACKDROPS, [each.weight for each in catalogue.BACKDROPS])[0]
    wanted = rng.choice(MOMENTS)
    at_home = [kind for kind in pool if backdrop.zones_for(kind)]
    # Those shown least come first, so that every kind is learned; among equals, and in held-out clips, it is chance.
    at_home.sort(key=lambda kind: (shown[kind] if split == "train" else 0, rng.random()))
    chosen: list[catalogue.ObjectKind] = []
    for kind in at_home:
        if len(chosen) < wanted and not any(catalogue.are_confusable(kind, other) for other in chosen):
            chosen.append(kind)
    if len(chosen) < min(MOMENTS):
        return None
    rng.shuffle(chosen)
    return ClipPlan(index, split, backdrop, tuple(_draw_moment(kind, backdrop, rng) for kind in chosen))


def _draw_moment(kind: catalogue.ObjectKind, backdrop: catalogue.Backdrop, rng: Random) -> ClipMoment:
    zone = backdrop.zones_for(kind)[0]
    actions = [
        action
        for action in ACTIONS
        if (not action.footings or zone.footing in action.footings) and (kind.turns or action.name != "turn")
    ]
    glyph, action = rng.choice(kind.glyphs), rng.choice(actions)
    mirrored = kind.turns and rng.random() < 0.5
    place, depth = rng.uniform(0.1, 0.9), rng.random()
    return ClipMoment(kind, glyph, zone, action, mirrored, place, depth, round(rng.choice(SECONDS) * FPS))


def write_moment_captions(plan: ClipPlan, colour: Colour, rng: Random) -> list[str]:
    """One for each moment, that names no other."""
    places = [rng.choice((None, _choose_place(moment, plan.backdrop, rng))) for moment in plan.moments]
    pairs = zip(plan.moments, places, strict=True)
    return [catalogue.to_sentence(_describe_event(moment, colour, rng, place)) for moment, place in pairs]


def write_clip_captions(plan: ClipPlan, colour: Colour, rng: Random) -> list[str]:
    """Five different ones: two of a single event, two of two events in their order, one that names every object."""
    numbers = list(range(len(plan.moments)))
    alone = rng.sample(numbers, 2)
    pairs = rng.sample([(a, b) for a in numbers for b in numbers if a < b], 2)
    singles = (plan.moments[number] for number in alone)
    texts = [_describe_event(moment, colour, rng, _choose_place(moment, plan.backdrop, rng)) for moment in singles]
    for pair in pairs:
        sequence = rng.choice(_SEQUENCES)
        texts.append(sequence.format(*(_describe_event(plan.moments[number], colour, rng) for number in pair)))
    objects = catalogue.join_phrases([_name_object(moment, colour, rng) for moment in plan.moments])
    texts.append(rng.choice(_ENUMERATIONS).format(objects, rng.choice(plan.backdrop.scenery)))
    rng.shuffle(texts)
    return [catalogue.to_sentence(text) for text in texts]


def _describe_event(moment: ClipMoment, colour: Colour, rng: Random, place: str | None = None) -> str:
    event = f"{_name_object(moment, colour, rng)} {rng.choice(moment.action.phrases)}"
    return f"{event} {place}" if place else event


def _name_object(moment: ClipMoment, colour: Colour, rng: Random) -> str:
    named = colour(moment.glyph) if moment.kind.has_colour and rng.random() < 0.5 else None
    return catalogue.indefinite_phrase(moment.kind.name, 1, named)


def _choose_place(moment: ClipMoment, backdrop: catalogue.Backdrop, rng: Random) -> str:
    return rng.choice(backdrop.phrases_for(moment.zone.footing) or backdrop.places or backdrop.scenery)
