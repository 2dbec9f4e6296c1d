"""What is true of boxes: the geometry behind left of, above, next to, between and bigger than.

Every rule is strict: a relation holds only where nobody would object. Coordinates grow to the right and down.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Box = tuple[int, int, int, int]

_SLACK = 0.15  # boxes may overlap by this share of the narrower one and still be side by side


def left_of(a: Box, b: Box) -> bool:
    """a ends about where b begins, and the way from a to b leads more sideways than up or down."""
    narrower = min(a[2] - a[0], b[2] - b[0])
    dx, dy = _middle(b, 0) - _middle(a, 0), _middle(b, 1) - _middle(a, 1)
    return a[2] <= b[0] + _SLACK * narrower and dx >= abs(dy)


def above(a: Box, b: Box) -> bool:
    """a ends about where b begins, seen from the top, and the way leads more down than sideways."""
    flatter = min(a[3] - a[1], b[3] - b[1])
    dx, dy = _middle(b, 0) - _middle(a, 0), _middle(b, 1) - _middle(a, 1)
    return a[3] <= b[1] + _SLACK * flatter and dy >= 1.2 * abs(dx)


def next_to(a: Box, b: Box) -> bool:
    """Side by side at the same height, with less than a third of their mean width between them."""
    gap = max(a[0], b[0]) - min(a[2], b[2])
    shared = min(a[3], b[3]) - max(a[1], b[1])
    mean_width = (a[2] - a[0] + b[2] - b[0]) / 2
    beside = left_of(a, b) or left_of(b, a)
    return beside and gap <= 0.34 * mean_width and shared >= 0.5 * min(a[3] - a[1], b[3] - b[1])


def between(a: Box, b: Box, c: Box) -> bool:
    """a stands between b on its left and c on its right, all at about the same height."""
    level = max(abs(_middle(a, 1) - _middle(other, 1)) for other in (b, c)) <= 0.6 * (a[3] - a[1])
    return level and left_of(b, a) and left_of(a, c)


def in_a_row(boxes: Sequence[Box]) -> bool:
    """Each box left of the one after it."""
    return all(left_of(a, b) for a, b in pairwise(boxes))


def much_bigger(a: Box, b: Box) -> bool:
    """At least twice the area."""
    return area(a) >= 2 * area(b)


def area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


def side(box: Box, size: int) -> str | None:
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
