"""Composition: where the objects of a picture stand, how big they are, and what hides a little of what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from polysem.synthetic.scenes.art import Art
from polysem.synthetic.scenes.catalogue import Backdrop, ObjectKind, Zone

UNIT = 224
"""Composition happens on a square of this many pixels; the size of the finished picture changes nothing but detail."""

_MARGIN = 4
_ROOMY = {2: 1.45, 3: 1.28, 4: 1.14, 5: 1.02}  # fewer things are drawn larger
# The share of a silhouette behind others: next to nothing, or, for one object of every other picture, a little.
_APART, _TOUCHING = 0.01, (0.05, 0.14)
_TOUCH_CHANCE = 0.5
_RANK = {"air": 0, "water": 1, "ground": 2, "free": 2}


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
        zone = backdrop.zone_for(kind.homes)
        if zone is None:
            raise ValueError(f"{kind.name} has no home in the backdrop {backdrop.name}")
        colour = art.colour(glyph) if kind.has_colour else None
        mirrored = kind.turns and rng.random() < 0.5
        draft = PlacedObject(kind, glyph, colour, mirrored, zone, (0, 0, 0, 0))
        wanted = _TOUCHING if position == touching else (0.0, _APART)
        candidates: list[tuple[float, PlacedObject, list[float]]] = []
        for _ in range(60):
            trial = _place_randomly(draft, kind.size * scale * variation, art, rng)
            if trial is None:
                continue
            after = _sum_hidden(placed, hidden, trial, art)
            new = max(now - before for now, before in zip(after, [*hidden, 0.0], strict=True))
            if max(after) <= _TOUCHING[1] and wanted[0] <= new <= wanted[1] and not _is_tangled(placed, trial, art):
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


def _sum_hidden(placed: Sequence[PlacedObject], hidden: Sequence[float], trial: PlacedObject, art: Art) -> list[float]:
    """The hidden share of every object, the new one last. Shares of several coverers add up: never too low."""
    after, own = list(hidden), 0.0
    for index, other in enumerate(placed):
        if trial.depth >= other.depth:
            after[index] += _compute_cover(trial, other, art)
        else:
            own += _compute_cover(other, trial, art)
    return [*after, own]


def _is_tangled(placed: Sequence[PlacedObject], trial: PlacedObject, art: Art) -> bool:
    """Whether things overlap that should not: two of a kind, or an airplane and a swimmer. Sun and clouds may."""
    return any(
        (other.kind == trial.kind or (other.zone != trial.zone and "sky" not in (other.kind.group, trial.kind.group)))
        and _compute_cover(trial, other, art) > 0
        for other in placed
    )


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
