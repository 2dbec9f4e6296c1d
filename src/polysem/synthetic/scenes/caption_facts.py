"""Everything true that can be said about a scene, as claims that wait to be worded.

A claim names some of the kinds in the picture and says one thing about them. Kinds are always named with their full
count: no caption says "a dog" where there are two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Literal

from polysem.synthetic.scenes.catalogue import CATALOGUE, NUMBERS, UNIQUE, Footing, ObjectKind
from polysem.synthetic.scenes.scene import UNIT, PlacedObject, Scene

Box = tuple[int, int, int, int]
Topic = Literal["list", "relation", "alone", "detail"]

COUNTED_GROUPS: dict[str, str] = CATALOGUE["counted_groups"]
_SLACK = 0.15  # boxes may overlap by this share of the narrower one and still be side by side


@dataclass(frozen=True)
class Mention:
    """All objects of one kind in the picture."""

    kind: ObjectKind
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


def find_claims(scene: Scene) -> list[Claim]:
    """Every claim that holds."""
    objects_of: dict[ObjectKind, list[tuple[int, PlacedObject]]] = {}
    for index, thing in enumerate(scene.objects):
        objects_of.setdefault(thing.kind, []).append((index, thing))
    present = []
    for kind, numbered in objects_of.items():
        indices, things = zip(*numbered, strict=True)
        boxes = tuple(thing.box for thing in things)
        present.append(Mention(kind, things[0].colour, things[0].zone.footing, boxes, indices))
    return [
        *_describe_kinds(present, scene),
        *_compare_sizes(present),
        *_count_groups(present),
        *_relate_pairs(present, scene),
        *_relate_triples(present),
    ]


def _describe_kinds(present: Sequence[Mention], scene: Scene) -> Iterator[Claim]:
    """Lists of kinds, then what is true of each."""
    for size in range(2, len(present) + 1):
        for chosen in combinations(present, size):
            yield Claim("list", "list", "two" if size == 2 else "many", chosen)
    total = sum(mention.count for mention in present)
    yield Claim("detail", "total", "total", tuple(present), {"total": NUMBERS[total]})
    for mention in present:
        yield Claim("alone", "place", "where", (mention,))
        if doing := _name_activity(mention, scene.backdrop.name):
            yield Claim("alone", "doing", "doing", (mention,), {"doing": doing})
        if mention.count > 1:
            yield Claim("detail", "count", "count", (mention,))
        if mention.colour:
            yield Claim("detail", "colour", "colour", (mention,), {"colour": mention.colour})
        if mention.count == 1 and not mention.colour:
            # Otherwise its count or colour says as much, and more.
            yield Claim("alone", "presence", "alone", (mention,))
        sides = {name_side(box, UNIT) for box in mention.boxes}
        if len(sides) == 1 and (side := sides.pop()):
            yield Claim("alone", "position", "position", (mention,), {"side": side})


def _compare_sizes(present: Sequence[Mention]) -> Iterator[Claim]:
    """In the picture and in the world: an apple drawn larger than a whale is better not talked about."""
    for a, b in permutations(present, 2):
        if a.one and b.one and area(a.one) >= 2 * area(b.one) and a.kind.size > b.kind.size:
            yield Claim("detail", "size", "bigger", (a, b))
    for a in present:
        others = [other for other in present if other is not a]
        if a.one and all(
            a.kind.size >= other.kind.size and all(area(a.one) >= 1.5 * area(box) for box in other.boxes)
            for other in others
        ):
            yield Claim("detail", "largest", "largest", (a,))


def _count_groups(present: Sequence[Mention]) -> Iterator[Claim]:
    for group, noun in COUNTED_GROUPS.items():
        members = [mention for mention in present if mention.kind.group == group]
        total = sum(mention.count for mention in members)
        if len(members) < 2 or (
            group == "vehicle" and any(mention.kind.name in CATALOGUE["riders"] for mention in present)
        ):
            continue
        words = {"total": NUMBERS[total], "members": noun}
        yield Claim("detail", f"group {group}", "group", tuple(members), words)
        for one in members:
            if one.count == 1 and total > 2:
                yield Claim("detail", f"group {group} with", "group_with", (one,), words)
        for other in present:
            if other.kind.group != group and other.kind.group not in COUNTED_GROUPS:
                yield Claim("detail", f"group {group} and", "group_and", (*members, other), words)


def _relate_pairs(present: Sequence[Mention], scene: Scene) -> Iterator[Claim]:
    for a, b in permutations(present, 2):
        if all(is_left_of(one, other) for one in a.boxes for other in b.boxes):
            yield Claim("relation", "sideways", "left", (a, b))
            yield Claim("relation", "sideways", "right", (b, a))
            if all(box[2] <= 0.55 * UNIT for box in a.boxes) and all(box[0] >= 0.45 * UNIT for box in b.boxes):
                yield Claim("relation", "sideways", "sides", (a, b))
        # Of two things on the ground the higher one is farther away, not above.
        upright = "air" in (a.footing, b.footing) or a.footing == "free"
        if upright and all(is_above(one, other) for one in a.boxes for other in b.boxes):
            up, down = ("above", "below") if a.footing == "free" else ("over", "beneath")
            yield Claim("relation", "upright", up, (a, b))
            yield Claim("relation", "upright", down, (b, a))
        if a.one and b.one:
            if a.footing == b.footing and is_next_to(a.one, b.one):
                yield Claim("relation", "beside", "beside", (a, b))
            if (a.indices[0], b.indices[0]) in scene.overlaps:
                yield Claim("relation", "depth", "front", (a, b))
                yield Claim("relation", "depth", "behind", (b, a))
                if b.kind.group in ("animal", "person") or b.kind.name in UNIQUE:
                    yield Claim("relation", "depth", "peek", (b, a))


def _relate_triples(present: Sequence[Mention]) -> Iterator[Claim]:
    for a, b, c in permutations(present, 3):
        if a.one and b.one and c.one:
            if is_between(a.one, b.one, c.one):
                yield Claim("relation", "between", "between", (a, b, c))
            if a.footing == b.footing == c.footing and is_left_of(a.one, b.one) and is_left_of(b.one, c.one):
                yield Claim("relation", "row", "row", (a, b, c))
            # Something in the air that is wholly higher than both, and not too far to the side to be over them.
            over = all(
                c.one[3] <= low[1] and abs(_middle(c.one, 0) - _middle(low, 0)) <= 0.35 * UNIT for low in (a.one, b.one)
            )
            flies = c.footing == "air" and "air" not in (a.footing, b.footing)
            if flies and over and a.kind.name < b.kind.name:
                yield Claim("relation", "under", "under", (a, b, c))


def _name_activity(mention: Mention, backdrop: str) -> str | None:
    """What such a thing does in such a place, when that goes without saying."""
    kind, footing = mention.kind, mention.footing
    if footing == "air":
        return CATALOGUE["activities"].get(kind.name) or ("flying" if kind.group in ("animal", "vehicle") else None)
    if footing == "water":
        return {"animal": "swimming", "vehicle": "floating"}.get(kind.group)
    if backdrop == "underwater":
        return "swimming" if kind.group == "animal" and kind.name not in ("crab", "lobster") else None
    if footing == "ground" and kind.group == "vehicle":
        return "parked"
    return "growing" if kind.group == "plant" and backdrop in ("meadow", "hills", "desert") else None


# Geometry of boxes. Every rule is strict: a relation holds only where nobody would object. Coordinates grow to the
# right and down.


def is_left_of(a: Box, b: Box) -> bool:
    """a ends about where b begins, and the way from a to b leads more sideways than up or down."""
    narrower = min(a[2] - a[0], b[2] - b[0])
    dx, dy = _middle(b, 0) - _middle(a, 0), _middle(b, 1) - _middle(a, 1)
    return a[2] <= b[0] + _SLACK * narrower and dx >= abs(dy)


def is_above(a: Box, b: Box) -> bool:
    """a ends about where b begins, seen from the top, and the way leads more down than sideways."""
    flatter = min(a[3] - a[1], b[3] - b[1])
    dx, dy = _middle(b, 0) - _middle(a, 0), _middle(b, 1) - _middle(a, 1)
    return a[3] <= b[1] + _SLACK * flatter and dy >= 1.2 * abs(dx)


def is_next_to(a: Box, b: Box) -> bool:
    """Side by side at the same height, with less than a third of their mean width between them."""
    gap = max(a[0], b[0]) - min(a[2], b[2])
    shared = min(a[3], b[3]) - max(a[1], b[1])
    mean_width = (a[2] - a[0] + b[2] - b[0]) / 2
    beside = is_left_of(a, b) or is_left_of(b, a)
    return beside and gap <= 0.34 * mean_width and shared >= 0.5 * min(a[3] - a[1], b[3] - b[1])


def is_between(a: Box, b: Box, c: Box) -> bool:
    """a stands between b on its left and c on its right, all at about the same height."""
    level = max(abs(_middle(a, 1) - _middle(other, 1)) for other in (b, c)) <= 0.6 * (a[3] - a[1])
    return level and is_left_of(b, a) and is_left_of(a, c)


def area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


def name_side(box: Box, size: int) -> str | None:
    """The part of a picture of `size` pixels that the whole box lies in, when it is a plain one to name."""
    across = "left" if box[2] <= 0.48 * size else "right" if box[0] >= 0.52 * size else None
    if across is None:
        return None
    if box[2] <= 0.42 * size or box[0] >= 0.58 * size:
        if box[3] <= 0.42 * size:
            return f"in the top {across} corner"
        if box[1] >= 0.58 * size:
            return f"in the bottom {across} corner"
    return f"on the {across}"


def _middle(box: Box, axis: int) -> float:
    return (box[axis] + box[axis + 2]) / 2
