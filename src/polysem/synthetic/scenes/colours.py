"""The colour of a drawing, when it has one: computed from its pixels and named from a small palette."""

from __future__ import annotations

import numpy as np
from PIL import Image

# The swatches OpenMoji is drawn with, under the word a person would use for them.
_SWATCHES = {
    "red": ("ea5a47", "d22f27", "781e32"),
    "orange": ("f4aa41", "e27022"),
    "yellow": ("fcea2b",),
    "amber": ("f1b31c",),
    "green": ("b1cc33", "5c9e31", "186648"),
    "blue": ("92d3f5", "61b2e4", "1e50a0"),
    "purple": ("b399c8", "8967aa"),
    "pink": ("ffa7c0", "e67a94"),
    "brown": ("a57939", "6a462f"),
    "white": ("ffffff",),
    "grey": ("d0cfce", "9b9b9a"),
    "black": ("3f3f3f",),
}
COLOURS = tuple(name for name in _SWATCHES if name != "amber")
"""Every colour a caption may name. Amber shades both yellow and orange drawings and counts for the one it shades."""

DOMINANT = 0.66
"""The share of a drawing's filled area that one colour needs to be called its colour."""
RUNNER_UP = 0.25
"""The most that any other single colour may hold: half white and half black is neither."""

_INK = 30  # outlines are pure black; no fill is as dark
_BLEND = 48  # a pixel further than this from every swatch lies between two of them, on an edge
_NAMES = [name for name, swatches in _SWATCHES.items() for _ in swatches]
_ANCHORS = np.array([list(bytes.fromhex(code)) for swatches in _SWATCHES.values() for code in swatches], dtype=np.int32)


def shares(drawing: Image.Image) -> dict[str, float]:
    """The part of the filled area that each colour holds, largest first; outlines and transparency do not count."""
    pixels = np.asarray(drawing.convert("RGBA"), dtype=np.int32).reshape(-1, 4)
    filled = pixels[(pixels[:, 3] > 200) & (pixels[:, :3].max(axis=1) > _INK), :3]
    if not len(filled):
        return {}
    # Few distinct colours make up a drawing: compare each of them once.
    codes, counts = np.unique(filled @ np.array([1 << 16, 1 << 8, 1]), return_counts=True)
    found = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    squared = ((found[:, None, :] - _ANCHORS[None]) ** 2).sum(axis=2)
    held = dict.fromkeys(_SWATCHES, 0)
    for anchor, distance, count in zip(squared.argmin(axis=1), squared.min(axis=1), counts, strict=True):
        if distance <= _BLEND**2:
            held[_NAMES[anchor]] += int(count)
    shaded = "yellow" if held["yellow"] >= held["orange"] else "orange"
    if held[shaded] > held["amber"]:
        held[shaded] += held.pop("amber")
    total = sum(held.values())
    return dict(sorted(((name, n / total) for name, n in held.items() if n), key=lambda pair: -pair[1]))


def dominant_colour(drawing: Image.Image) -> str | None:
    """The one colour a person would give the drawing, or None when no colour clearly leads."""
    held = list(shares(drawing).items())
    if not held or held[0][1] < DOMINANT or (len(held) > 1 and held[1][1] > RUNNER_UP):
        return None
    return held[0][0] if held[0][0] in COLOURS else None
