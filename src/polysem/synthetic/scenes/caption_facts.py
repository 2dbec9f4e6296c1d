"""Everything true that can be said about a scene, as claims that wait to be worded.

A claim names some of the kinds in the picture and says one thing about them. Kinds are always named with their full
count: no caption says "a dog" where there are two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Literal

from polysem.synthetic.scenes import box_geometry
from polysem.synthetic.scenes.backdrops import Footing
from polysem.synthetic.scenes.box_geometry import Box
from polysem.synthetic.scenes.english import UNIQUE, number
from polysem.synthetic.scenes.scene import UNIT, Placed, Scene
from polysem.synthetic.scenes.vocabulary import Kind

Topic = Literal["list", "relation", "alone", "detail"]

# Groups whose members are beyond dispute, and what several of them are called.
COUNTED_GROUPS = {
    "animal": "animals",
    "vehicle": "vehicles",
    "person": "people",
    "instrument": "musical instruments",
    "fruit": "pieces of fruit",
}
# Kinds that bring a vehicle along without being one: how many vehicles there are is then a matter of opinion.
_RIDERS = frozenset({"cyclist", "rower", "surfer", "skateboard", "sled"})

_DOING = {
    **{"sun": "shining", "moon": "shining", "star": "twinkling", "cloud": "drifting by", "comet": "racing by"},
    **{"kite": "flying", "balloon": "floating", "parachute": "floating down", "planet": "hanging"},
}


@dataclass(frozen=True)
class Mention:
    """All objects of one kind in the picture."""

    kind: Kind
    colour: str | None
    footing: Footing
    boxes: tuple[Box, ...]
    indices: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.boxes)

    @property
    def one(self) -> Box | None:
        """The box of a kind that occurs once."""
        return self.boxes[0] if self.count == 1 else None


@dataclass(frozen=True)
class Claim:
    """`about` is what is said, the same word for a claim and its converse; `form` picks the wording."""

    topic: Topic
    about: str
    form: str
    mentions: tuple[Mention, ...]
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> tuple[str, frozenset[str]]:
        """What two captions of one picture must differ in."""
        return self.about, frozenset(mention.kind.name for mention in self.mentions)


def mentions(scene: Scene) -> list[Mention]:
    """The kinds of the scene with their objects."""
    found: dict[Kind, list[tuple[int, Placed]]] = {}
    for index, thing in enumerate(scene.objects):
        found.setdefault(thing.kind, []).append((index, thing))
    return [
        Mention(
            kind,
            things[0][1].colour,
            things[0][1].zone.footing,
            tuple(thing.box for _, thing in things),
            tuple(index for index, _ in things),
        )
        for kind, things in found.items()
    ]


def claims(scene: Scene) -> list[Claim]:
    """Every claim that holds."""
    present = mentions(scene)
    return [
        *_lists(present),
        *_about_one(present, scene),
        *_sizes(present),
        *_groups(present),
        *_pairs(present, scene),
        *_triples(present),
    ]


def _lists(present: Sequence[Mention]) -> Iterator[Claim]:
    for size in range(2, len(present) + 1):
        for chosen in combinations(present, size):
            yield Claim("list", "list", "two" if size == 2 else "many", chosen)
    total = sum(mention.count for mention in present)
    yield Claim("detail", "total", "total", tuple(present), {"total": number(total)})


def _about_one(present: Sequence[Mention], scene: Scene) -> Iterator[Claim]:
    for mention in present:
        yield Claim("alone", "place", "where", (mention,))
        if doing := _doing(mention, scene.backdrop.name):
            yield Claim("alone", "doing", "doing", (mention,), {"doing": doing})
        if mention.count > 1:
            yield Claim("detail", "count", "count", (mention,))
        if mention.colour:
            yield Claim("detail", "colour", "colour", (mention,), {"colour": mention.colour})
        if mention.count == 1 and not mention.colour:
            # Otherwise its count or colour says as much, and more.
            yield Claim("alone", "presence", "alone", (mention,))
        sides = {box_geometry.side(box, UNIT) for box in mention.boxes}
        if len(sides) == 1 and (side := sides.pop()):
            yield Claim("alone", "position", "position", (mention,), {"side": side})


def _sizes(present: Sequence[Mention]) -> Iterator[Claim]:
    """In the picture and in the world: an apple drawn larger than a whale is better not talked about."""
    for a, b in permutations(present, 2):
        if a.one and b.one and box_geometry.much_bigger(a.one, b.one) and a.kind.size > b.kind.size:
            yield Claim("detail", "size", "bigger", (a, b))
    for a in present:
        others = [other for other in present if other is not a]
        if a.one and all(_outgrown(a.one, a.kind, other) for other in others):
            yield Claim("detail", "largest", "largest", (a,))


def _outgrown(box: Box, kind: Kind, other: Mention) -> bool:
    return kind.size >= other.kind.size and all(
        box_geometry.area(box) >= 1.5 * box_geometry.area(each) for each in other.boxes
    )


def _groups(present: Sequence[Mention]) -> Iterator[Claim]:
    for group, noun in COUNTED_GROUPS.items():
        members = [mention for mention in present if mention.kind.group == group]
        total = sum(mention.count for mention in members)
        if len(members) < 2 or (group == "vehicle" and any(mention.kind.name in _RIDERS for mention in present)):
            continue
        words = {"total": number(total), "members": noun}
        yield Claim("detail", f"group {group}", "group", tuple(members), words)
        for one in members:
            if one.count == 1 and total > 2:
                yield Claim("detail", f"group {group} with", "group_with", (one,), words)
        for other in present:
            if other.kind.group != group and other.kind.group not in COUNTED_GROUPS:
                yield Claim("detail", f"group {group} and", "group_and", (*members, other), words)


def _pairs(present: Sequence[Mention], scene: Scene) -> Iterator[Claim]:
    for a, b in permutations(present, 2):
        if all(box_geometry.left_of(one, other) for one in a.boxes for other in b.boxes):
            yield Claim("relation", "sideways", "left", (a, b))
            yield Claim("relation", "sideways", "right", (b, a))
            if all(box[2] <= 0.55 * UNIT for box in a.boxes) and all(box[0] >= 0.45 * UNIT for box in b.boxes):
                yield Claim("relation", "sideways", "sides", (a, b))
        # Of two things on the ground the higher one is farther away, not above.
        upright = "air" in (a.footing, b.footing) or a.footing == "free"
        if upright and all(box_geometry.above(one, other) for one in a.boxes for other in b.boxes):
            up, down = ("above", "below") if a.footing == "free" else ("over", "beneath")
            yield Claim("relation", "upright", up, (a, b))
            yield Claim("relation", "upright", down, (b, a))
        if a.one and b.one:
            if a.footing == b.footing and box_geometry.next_to(a.one, b.one):
                yield Claim("relation", "beside", "beside", (a, b))
            if (a.indices[0], b.indices[0]) in scene.overlaps:
                yield Claim("relation", "depth", "front", (a, b))
                yield Claim("relation", "depth", "behind", (b, a))
                if b.kind.group in ("animal", "person") or b.kind.name in UNIQUE:
                    yield Claim("relation", "depth", "peek", (b, a))


def _triples(present: Sequence[Mention]) -> Iterator[Claim]:
    for a, b, c in permutations(present, 3):
        if a.one and b.one and c.one:
            if box_geometry.between(a.one, b.one, c.one):
                yield Claim("relation", "between", "between", (a, b, c))
            if a.footing == b.footing == c.footing and box_geometry.in_a_row((a.one, b.one, c.one)):
                yield Claim("relation", "row", "row", (a, b, c))
            flies = c.footing == "air" and "air" not in (a.footing, b.footing)
            if flies and a.kind.name < b.kind.name and all(_over(c.one, box) for box in (a.one, b.one)):
                yield Claim("relation", "under", "under", (a, b, c))


def _over(high: Box, low: Box) -> bool:
    """Whether one box is wholly higher than the other, and not too far to the side to be over it."""
    return high[3] <= low[1] and abs(high[0] + high[2] - low[0] - low[2]) / 2 <= 0.35 * UNIT


def _doing(mention: Mention, backdrop: str) -> str | None:
    """What such a thing does in such a place, when that goes without saying."""
    kind, footing = mention.kind, mention.footing
    if footing == "air":
        return _DOING.get(kind.name) or ("flying" if kind.group in ("animal", "vehicle") else None)
    if footing == "water":
        return {"animal": "swimming", "vehicle": "floating"}.get(kind.group)
    if backdrop == "underwater":
        return "swimming" if kind.group == "animal" and kind.name not in ("crab", "lobster") else None
    if footing == "ground" and kind.group == "vehicle":
        return "parked"
    return "growing" if kind.group == "plant" and backdrop in ("meadow", "hills", "desert") else None
