"""A composed scene as a finished picture."""

from __future__ import annotations

from random import Random

from PIL import Image, ImageDraw, ImageFilter

from polysem.synthetic.scenes.art import Art
from polysem.synthetic.scenes.landscape import paint
from polysem.synthetic.scenes.scene import UNIT, Placed, Scene

_SHADE = 62


def pixel_box(thing: Placed, size: int) -> tuple[int, int, int, int]:
    """The object's box in a picture of `size` pixels."""
    x0, y0, x1, y1 = (round(value * size / UNIT) for value in thing.box)
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)


def picture(scene: Scene, art: Art, size: int, rng: Random) -> Image.Image:
    """Paint the backdrop, then the objects from back to front, each with the shadow it throws on the ground."""
    image = paint(scene.backdrop.name, size, rng)
    for thing in scene.objects:
        x0, y0, x1, y1 = pixel_box(thing, size)
        if thing.zone.footing == "ground":
            # A crown or a blossom is wider than what stands on the ground.
            inset = (x1 - x0) // 4 if thing.kind.group == "plant" else 0
            _shadow(image, x0 + inset, x1 - inset, y1)
        drawing = art.sized(thing.glyph, x1 - x0, y1 - y0, thing.mirrored)
        image.paste(drawing, (x0, y0), drawing)
    return image


def _shadow(image: Image.Image, x0: int, x1: int, foot: int) -> None:
    """A soft pool of shade under the foot of a thing."""
    width, soft = x1 - x0, max(1, image.width // 110)
    tall = max(4, width // 7)
    shade = Image.new("L", (width + 4 * soft, tall + 4 * soft))
    ImageDraw.Draw(shade).ellipse((2 * soft, 2 * soft, width + 2 * soft, tall + 2 * soft), _SHADE)
    shade = shade.filter(ImageFilter.GaussianBlur(soft))
    image.paste((60, 50, 70), (x0 - 2 * soft, foot - tall // 2 - 2 * soft), shade)
