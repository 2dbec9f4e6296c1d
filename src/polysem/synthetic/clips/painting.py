"""The frames of a clip: a backdrop painted once, and on it a drawing that moves."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from PIL import Image

from polysem.synthetic.clips.actions import MARGIN, Pose
from polysem.synthetic.clips.storyboard import Cast, Part
from polysem.synthetic.scenes.art import Art
from polysem.synthetic.scenes.landscape import paint

_LARGER = 1.6
"""Than in a scene of several objects: here each has the picture to itself."""
_MOST = 0.62


def frames(cast: Cast, art: Art, size: int, rng: Random) -> Iterator[Image.Image]:
    """Every frame, in order; one is held at a time."""
    backdrop = paint(cast.backdrop.name, size, rng)
    for part in cast.parts:
        sprites: dict[tuple[int, int, bool], Image.Image] = {}
        for number in range(part.frames):
            pose = part.action.pose(number / (part.frames - 1), part.place)
            x, y, width, height = _box(part, pose, art, size)
            key = width, height, part.mirrored != pose.mirrored
            if key not in sprites:
                sprites[key] = art.sized(part.glyph, *key)
            frame = backdrop.copy()
            frame.paste(sprites[key], (x, y), sprites[key])
            yield frame


def _box(part: Part, pose: Pose, art: Art, size: int) -> tuple[int, int, int, int]:
    """Left, top, width and height in pixels, wholly inside the picture."""
    share = min(part.kind.size * _LARGER, _MOST)
    full = art.fitted(part.glyph, size * share)
    width, height = art.fitted(part.glyph, size * share * pose.scale)
    edge = round(size * MARGIN)
    left = edge + pose.x * (size - 2 * edge - full[0]) + (full[0] - width) / 2
    anchor = size * (part.zone.top + (part.zone.bottom - part.zone.top) * part.depth)
    standing = part.zone.footing in ("ground", "water")
    top = anchor - (height if standing else height / 2) - size * pose.lift
    return round(left), round(min(max(top, edge), size - edge - height)), width, height
