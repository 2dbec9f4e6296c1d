"""Which kinds meet in a picture, where they stand, how big they are, and what hides a little of what.

Test pictures show combinations that nobody has trained on. Kinds belong to families. Train and val pictures take their
kinds from *different* families, test pictures from *one*: no two kinds that meet in a test picture ever meet in train
or val. A test picture shows only kinds that an earlier train picture has shown. The families depend on the vocabulary
alone, not on the seed, so sets made with different seeds can be put together.

Picture i depends on the seed and on the pictures before it, never on how many follow: a larger set begins with the
smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

import numpy as np

from polysem.synthetic.scenes.art import Art
from polysem.synthetic.scenes.catalogue import BACKDROPS, UNIQUE, Backdrop, ObjectKind, Zone, are_confusable

Split = Literal["train", "val", "test"]

_OBJECTS = {2: 16, 3: 30, 4: 30, 5: 24}
_REPEATS = 0.4
_MOST_IN_THE_AIR = 2

UNIT = 224
"""Composition happens on a square of this many pixels; the size of the finished picture changes nothing but detail."""

_MARGIN = 4
_ROOMY = {2: 1.45, 3: 1.28, 4: 1.14, 5: 1.02}  # fewer things are drawn larger
# The share of a silhouette behind others: next to nothing, or, for one object of every other picture, a little.
_APART, _TOUCHING = 0.01, (0.05, 0.14)
_TOUCH_CHANCE = 0.5
_RANK = {"air": 0, "water": 1, "ground": 2, "free": 2}


@dataclass(frozen=True)
class ScenePlan:
    """What picture `index` will show: how many of which kinds, and where."""

    index: int
    split: Split
    backdrop: Backdrop
    counts: tuple[tuple[ObjectKind, int], ...]


def choose_split(index: int) -> Split:
    """Of every ten pictures eight train, the ninth validates and the tenth tests."""
    return ("val" if index % 10 == 8 else "test") if index % 10 >= 8 else "train"


def item_rng(dataset: str, seed: int, index: int, purpose: str) -> Random:
    """A stream of its own for every item and purpose, which are the seed: none depends on how much another one drew."""
    return Random(f"{dataset}/{seed}/{index}/{purpose}")


def plan_scenes(kinds: Sequence[ObjectKind], items: int, seed: int) -> Iterator[ScenePlan]:
    """Plan the first `items` pictures."""
    trained: set[ObjectKind] = set()
    for index in range(items):
        split, rng = choose_split(index), item_rng("emoji-scenes", seed, index, "cast")
        pool = [kind for kind in kinds if kind in trained] if split == "test" else kinds
        plan = None
        while plan is None:
            plan = _draw_plan(index, split, pool, rng)
        if split == "train":
            trained.update(kind for kind, _ in plan.counts)
        yield plan


def _draw_plan(index: int, split: Split, pool: Sequence[ObjectKind], rng: Random) -> ScenePlan | None:
    """One draw; None when backdrop and family leave fewer than two kinds to choose from."""
    backdrop = rng.choices(BACKDROPS, [each.weight for each in BACKDROPS])[0]
    objects = rng.choices(list(_OBJECTS), list(_OBJECTS.values()))[0]
    repeats = min(rng.choice((1, 1, 2)), objects - 2) if rng.random() < _REPEATS else 0
    at_home = [kind for kind in pool if backdrop.zones_for(kind)]
    if split == "test":
        family = rng.choice(sorted({kind.family for kind in pool}))
        at_home = [kind for kind in at_home if kind.family == family]
    rng.shuffle(at_home)
    # Something has to stand below: two kites over an empty meadow are not a scene.
    standing = next((kind for kind in at_home if not _flies(kind, backdrop)), None)
    if standing is None:
        return None
    chosen = [standing]
    for kind in at_home:
        mixed = split == "test" or all(kind.family != other.family for other in chosen)
        distinct = mixed and kind not in chosen and not any(are_confusable(kind, other) for other in chosen)
        crowded = _flies(kind, backdrop) and sum(_flies(other, backdrop) for other in chosen) >= _MOST_IN_THE_AIR
        if len(chosen) < objects - repeats and distinct and not crowded:
            chosen.append(kind)
    if len(chosen) < 2:
        return None
    counts = dict.fromkeys(chosen, 1)
    countable = [kind for kind in chosen if kind.name not in UNIQUE and kind.size < 0.4]
    if repeats and countable:
        counts[rng.choice(countable)] += repeats
    return ScenePlan(index, split, backdrop, tuple(counts.items()))


def _flies(kind: ObjectKind, backdrop: Backdrop) -> bool:
    return backdrop.zones_for(kind)[0].footing == "air"


@dataclass(frozen=True)
class PlacedObject:
    """An object in its place. `box` is x0, y0, x1, y1 of the whole object, hidden parts included, in `UNIT` pixels."""

    kind: ObjectKind
    glyph: str
    colour: str | None
    mirrored: bool
    zone: Zone
    box: tuple[int, int, int, int]

    @property
    def depth(self) -> tuple[int, int]:
        """Larger is nearer: the ground is before the sky, and a lower foot before a higher one."""
        return _RANK[self.zone.footing], self.box[3] if self.zone.is_surface else 0


@dataclass(frozen=True)
class Scene:
    """A composed picture: its objects from back to front, and which of them (front, back) visibly overlap."""

    backdrop: Backdrop
    objects: tuple[PlacedObject, ...]
    overlaps: frozenset[tuple[int, int]]


def compose(counts: Sequence[tuple[ObjectKind, int]], backdrop: Backdrop, art: Art, rng: Random) -> Scene:
    """Place `count` objects of each kind on the backdrop."""
    parts = [
        (kind, glyph, rng.uniform(0.92, 1.08))
        for kind, count in counts
        for glyph in [rng.choice(kind.glyphs)]
        for _ in range(count)
    ]
    # The big ones look for a place first: small ones fit into what is left.
    parts.sort(key=lambda entry: -entry[0].size)
    touching = rng.randrange(1, len(parts)) if rng.random() < _TOUCH_CHANCE else None
    scale = _ROOMY.get(len(parts), 1.0)
    while (objects := _arrange(parts, touching, scale, backdrop, art, rng)) is None:
        scale *= 0.93
        touching = None
    order = sorted(range(len(objects)), key=lambda index: (*objects[index].depth, index))
    back_to_front = tuple(objects[index] for index in order)
    overlaps = {
        (front, back)
        for front, near in enumerate(back_to_front)
        for back, far in enumerate(back_to_front[:front])
        if _compute_cover(near, far, art) >= _TOUCHING[0]
    }
    return Scene(backdrop, back_to_front, frozenset(overlaps))


def _arrange(
    parts: Sequence[tuple[ObjectKind, str, float]],
    touching: int | None,
    scale: float,
    backdrop: Backdrop,
    art: Art,
    rng: Random,
) -> list[PlacedObject] | None:
    """All of them in places that suit, or None when one finds none at this scale."""
    placed: list[PlacedObject] = []
    hidden: list[float] = []
    for position, (kind, glyph, variation) in enumerate(parts):
        colour = art.colour(glyph) if kind.has_colour else None
        mirrored = kind.turns and rng.random() < 0.5
        draft = PlacedObject(kind, glyph, colour, mirrored, backdrop.zones_for(kind)[0], (0, 0, 0, 0))
        wanted = _TOUCHING if position == touching else (0.0, _APART)
        candidates: list[tuple[float, PlacedObject, list[float]]] = []
        for _ in range(60):
            trial = _place_randomly(draft, kind.size * scale * variation, art, rng)
            after = None if trial is None else _sum_hidden(placed, hidden, trial, art)
            if trial is None or after is None:
                continue
            new = max(now - before for now, before in zip(after, [*hidden, 0.0], strict=True))
            if max(after) <= _TOUCHING[1] and wanted[0] <= new <= wanted[1]:
                candidates.append((min((_distance(trial, other) for other in placed), default=0.0), trial, after))
                if len(candidates) == 3 or position == touching:
                    break
        if not candidates:
            return None
        # Of a few good places the one farthest from the others: pictures fill evenly without looking ruled.
        _, best, hidden = max(candidates, key=lambda entry: entry[0])
        placed.append(best)
    return placed


def _place_randomly(draft: PlacedObject, share: float, art: Art, rng: Random) -> PlacedObject | None:
    """The object at a random place of its zone, or None where it would leave the picture."""
    zone, along = draft.zone, rng.random()
    perspective = 0.88 + 0.2 * along if zone.is_surface else 1.0
    width, height = art.fit_size(draft.glyph, UNIT * share * perspective)
    left = _MARGIN + rng.random() * (UNIT - 2 * _MARGIN - width)
    top = zone.find_top(UNIT, along, height)
    if not zone.is_surface:
        top = min(max(top, _MARGIN), UNIT - _MARGIN - height)
    if top < _MARGIN or left < _MARGIN:
        return None
    x0, y0 = round(left), round(top)
    return replace(draft, box=(x0, y0, x0 + width, y0 + height))


def _sum_hidden(
    placed: Sequence[PlacedObject], hidden: Sequence[float], trial: PlacedObject, art: Art
) -> list[float] | None:
    """The hidden share of every object, the new one last. Shares of several coverers add up: never too low.

    None if things overlap that should not: two of a kind, or an airplane and a swimmer. Sun and clouds may.
    """
    after, own = list(hidden), 0.0
    for index, other in enumerate(placed):
        in_front = trial.depth >= other.depth
        share = _compute_cover(trial, other, art) if in_front else _compute_cover(other, trial, art)
        apart = other.zone != trial.zone and "sky" not in (other.kind.group, trial.kind.group)
        if share > 0 and (other.kind == trial.kind or apart):
            return None
        after[index] += share if in_front else 0.0
        own += 0.0 if in_front else share
    return [*after, own]


def _compute_cover(near: PlacedObject, far: PlacedObject, art: Art) -> float:
    """The share of the far object's silhouette that the near one's covers."""
    left, top = max(near.box[0], far.box[0]), max(near.box[1], far.box[1])
    right, bottom = min(near.box[2], far.box[2]), min(near.box[3], far.box[3])
    if left >= right or top >= bottom:
        return 0.0
    cuts = []
    for thing in (near, far):
        x0, y0, x1, y1 = thing.box
        window = (left - x0, top - y0, right - x0, bottom - y0)
        cuts.append(art.silhouette(thing.glyph, (x1 - x0, y1 - y0), window, thing.mirrored))
    width, height = far.box[2] - far.box[0], far.box[3] - far.box[1]
    return float(np.count_nonzero(cuts[0] & cuts[1])) / (art.fullness(far.glyph) * width * height)


def _distance(a: PlacedObject, b: PlacedObject) -> float:
    """Between the middles, in units of their joint size."""
    dx, dy = (abs(a.box[i] + a.box[i + 2] - b.box[i] - b.box[i + 2]) / 2 for i in (0, 1))
    sides = max(a.box[2] - a.box[0], a.box[3] - a.box[1]) + max(b.box[2] - b.box[0], b.box[3] - b.box[1])
    return float(2 * (dx**2 + dy**2) ** 0.5 / sides)
