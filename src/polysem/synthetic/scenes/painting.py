"""Painting a scene: its backdrop, flat, pastel and a little different every time, and the objects on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from polysem.synthetic.scenes.art import Art
from polysem.synthetic.scenes.catalogue import load_table
from polysem.synthetic.scenes.scene import UNIT, PlacedObject, Scene

_FINER = 2  # painted at twice the size and shrunk, for smooth edges
_SHADE = 62
_PALETTES = load_table("palettes.yaml")


def pixel_box(thing: PlacedObject, size: int) -> tuple[int, int, int, int]:
    """The object's box in a picture of `size` pixels."""
    x0, y0, x1, y1 = (round(value * size / UNIT) for value in thing.box)
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)


def paint_scene(scene: Scene, art: Art, size: int, rng: Random) -> Image.Image:
    """Paint the backdrop, then the objects from back to front, each with the shadow it throws on the ground."""
    image = paint_backdrop(scene.backdrop.name, size, rng)
    for thing in scene.objects:
        x0, y0, x1, y1 = pixel_box(thing, size)
        if thing.zone.footing == "ground":
            # A crown or a blossom is wider than what stands on the ground.
            inset = (x1 - x0) // 4 if thing.kind.group == "plant" else 0
            width, soft = x1 - x0 - 2 * inset, max(1, size // 110)
            tall = max(4, width // 7)
            shade = Image.new("L", (width + 4 * soft, tall + 4 * soft))
            ImageDraw.Draw(shade).ellipse((2 * soft, 2 * soft, width + 2 * soft, tall + 2 * soft), _SHADE)
            shade = shade.filter(ImageFilter.GaussianBlur(soft))
            image.paste((60, 50, 70), (x0 + inset - 2 * soft, y1 - tall // 2 - 2 * soft), shade)
        drawing = art.scale(thing.glyph, x1 - x0, y1 - y0, thing.mirrored)
        image.paste(drawing, (x0, y0), drawing)
    return image


class Canvas:
    """A square whose coordinates run from 0 to 1."""

    def __init__(self, size: int, rng: Random) -> None:
        self.size = size * _FINER
        self.rng = rng
        self.image = Image.new("RGB", (self.size, self.size))
        self.draw = ImageDraw.Draw(self.image, "RGBA")

    def gradient(self, top: str, bottom: str, start: float = 0.0, end: float = 1.0) -> None:
        """A vertical blend between two heights."""
        first, last = round(start * self.size), round(end * self.size)
        steps = np.linspace(0.0, 1.0, max(last - first, 1))[:, None]
        high, low = (np.frombuffer(bytes.fromhex(colour), np.uint8) for colour in (top, bottom))
        rows = np.rint((1 - steps) * high + steps * low).astype(np.uint8)
        strip = Image.fromarray(np.ascontiguousarray(rows[:, None, :])).resize((self.size, len(rows)))
        self.image.paste(strip, (0, first))

    def hill(self, colour: str, height: float, swell: float, waves: float = 1.0) -> None:
        """Everything below a rolling line around `height`."""
        phase, tilt = self.rng.uniform(0, 2 * math.pi), self.rng.uniform(-0.5, 0.5)
        line = [
            (x, height + swell * (math.sin(phase + 2 * math.pi * waves * x) + tilt * math.cos(5 * x + phase)))
            for x in (step / 48 for step in range(49))
        ]
        self.polygon(colour, [*line, (1.0, 1.0), (0.0, 1.0)])

    def polygon(self, colour: str, points: list[tuple[float, float]], alpha: int = 255) -> None:
        self.draw.polygon([(x * self.size, y * self.size) for x, y in points], (*bytes.fromhex(colour), alpha))

    def box(self, colour: str, x0: float, y0: float, x1: float, y1: float, alpha: int = 255) -> None:
        corners = [round(value * self.size) for value in (x0, y0, x1, y1)]
        if corners[2] > corners[0] and corners[3] > corners[1]:
            self.draw.rectangle(
                (corners[0], corners[1], corners[2] - 1, corners[3] - 1), (*bytes.fromhex(colour), alpha)
            )

    def dot(self, colour: str, x: float, y: float, rx: float, ry: float | None = None, alpha: int = 255) -> None:
        rx, ry = rx * self.size, (rx if ry is None else ry) * self.size
        middle = x * self.size, y * self.size
        self.draw.ellipse(
            (middle[0] - rx, middle[1] - ry, middle[0] + rx, middle[1] + ry), (*bytes.fromhex(colour), alpha)
        )

    def line(self, colour: str, points: list[tuple[float, float]], width: float, alpha: int = 255) -> None:
        pixels, ink = [(x * self.size, y * self.size) for x, y in points], (*bytes.fromhex(colour), alpha)
        self.draw.line(pixels, ink, max(1, round(width * self.size)), joint="curve")

    def scatter(self, paint: Callable[[float, float], None], count: int, top: float, bottom: float) -> None:
        for _ in range(count):
            paint(self.rng.uniform(0.02, 0.98), self.rng.uniform(top, bottom))

    def scatter_dots(
        self, colour: str, count: int, top: float, bottom: float, radius: tuple[float, float], alpha: int
    ) -> None:
        self.scatter(lambda x, y: self.dot(colour, x, y, self.rng.uniform(*radius), alpha=alpha), count, top, bottom)

    def choose_palette(self, name: str) -> Any:
        """A colour of `palettes.yaml`, or several that go together."""
        return self.rng.choice(_PALETTES[name])


def paint_backdrop(name: str, size: int, rng: Random) -> Image.Image:
    """The backdrop called `name`, `size` pixels square."""
    canvas = Canvas(size, rng)
    _PAINTERS[name](canvas)
    return canvas.image.resize((size, size), Image.Resampling.BOX)


def _paint_day_sky(canvas: Canvas) -> None:
    canvas.gradient(*canvas.choose_palette("day sky"))


def _paint_meadow(canvas: Canvas) -> None:
    _paint_day_sky(canvas)
    far, near, grass = canvas.choose_palette("meadow")
    canvas.hill(far, 0.50, 0.03)
    canvas.hill(near, 0.58, 0.02, 0.7)

    def paint_tuft(x: float, y: float) -> None:
        for lean in (-0.008, 0.0, 0.008):
            canvas.line(grass, [(x, y), (x + lean, y - 0.018)], 0.004)

    canvas.scatter(paint_tuft, 16, 0.66, 0.98)


def _paint_hills(canvas: Canvas) -> None:
    _paint_day_sky(canvas)
    shapes = ((0.42, 0.05, 1.3), (0.50, 0.05, 1.0), (0.58, 0.04, 0.8), (0.68, 0.02, 0.6))
    for colour, shape in zip(canvas.choose_palette("hills"), shapes, strict=True):
        canvas.hill(colour, *shape)


def _paint_night(canvas: Canvas) -> None:
    top, bottom, far, near = canvas.choose_palette("night")
    canvas.gradient(top, bottom, 0.0, 0.7)
    canvas.scatter_dots("fdf6d8", 34, 0.02, 0.5, (0.002, 0.0045), 220)
    canvas.hill(far, 0.56, 0.03)
    canvas.hill(near, 0.65, 0.02, 0.8)


def _paint_street(canvas: Canvas) -> None:
    _paint_day_sky(canvas)
    rng, x = canvas.rng, -0.03
    while x < 1.0:
        wide, roof = rng.uniform(0.12, 0.2), rng.uniform(0.36, 0.5)
        canvas.box(canvas.choose_palette("houses"), x, roof, x + wide, 0.64)
        for row, column in product(range(2), range(2)):
            left, top = x + wide * (0.2 + 0.4 * column), roof + 0.04 + 0.08 * row
            canvas.box("ffffff", left, top, left + wide * 0.2, top + 0.04, alpha=150)
        x += wide
    canvas.box("d9d5cc", 0, 0.63, 1, 0.70)
    canvas.box("bfc1c6", 0, 0.70, 1, 1)
    for dash in range(6):
        left = dash * 0.2 - rng.choice((0.0, 0.1))
        canvas.box("f4f1e6", left, 0.845, left + 0.1, 0.86)


def _paint_beach(canvas: Canvas) -> None:
    _paint_day_sky(canvas)
    canvas.gradient("8fcdea", "a9def0", 0.48, 0.75)
    canvas.hill("f3fbfb", 0.685, 0.008, 1.6)
    canvas.hill(canvas.choose_palette("sand"), 0.70, 0.008, 1.6)
    canvas.scatter(lambda x, y: canvas.dot("e3c993", x, y, 0.004), 26, 0.76, 0.98)


def _paint_sea(canvas: Canvas) -> None:
    _paint_day_sky(canvas)
    canvas.gradient("8ecbea", "92d3f5", 0.46, 1.0)

    def paint_wave(x: float, y: float) -> None:
        points = [(x + step / 100, y + 0.006 * math.sin(step * math.pi / 3)) for step in range(10)]
        canvas.line("e6f6fc", points, 0.005, alpha=170)

    canvas.scatter(paint_wave, 16, 0.50, 0.97)


def _paint_underwater(canvas: Canvas) -> None:
    canvas.gradient(*canvas.choose_palette("underwater"))
    for _ in range(3):
        x = canvas.rng.uniform(0.0, 0.9)
        canvas.polygon("ffffff", [(x, 0), (x + 0.08, 0), (x + 0.02, 1), (x - 0.16, 1)], alpha=36)
    canvas.hill("efdfb9", 0.90, 0.015, 1.2)
    canvas.scatter_dots("ffffff", 12, 0.05, 0.8, (0.005, 0.012), 110)


def _paint_snow(canvas: Canvas) -> None:
    canvas.gradient(*canvas.choose_palette("snow"))
    canvas.hill("dfe9f2", 0.50, 0.04)
    canvas.hill("f1f5fa", 0.60, 0.025, 0.8)
    canvas.scatter_dots("ffffff", 40, 0.02, 0.98, (0.004, 0.008), 230)


def _paint_desert(canvas: Canvas) -> None:
    canvas.gradient(*canvas.choose_palette("desert"))
    for colour, height, swell in (("f2d3a0", 0.50, 0.05), ("f0cb90", 0.58, 0.04), ("f4d9a8", 0.66, 0.02)):
        canvas.hill(colour, height, swell, 0.9)


def _paint_wall(canvas: Canvas, bottom: float) -> None:
    canvas.box(canvas.choose_palette("wall"), 0, 0, 1, bottom)
    pattern = canvas.rng.randrange(3)
    if pattern == 0:
        for stripe in range(8):
            canvas.box("ffffff", stripe / 8, 0, stripe / 8 + 0.0625, bottom, alpha=90)
    elif pattern == 1:
        for row, column in product(range(8), range(9)):
            canvas.dot("ffffff", column / 8 + 0.0625 * (row % 2), row / 9 + 0.03, 0.012, alpha=140)


def _paint_room(canvas: Canvas) -> None:
    _paint_wall(canvas, 0.6)
    floor, seam, rug = canvas.choose_palette("room")
    canvas.box(floor, 0, 0.6, 1, 1)
    canvas.box("ffffff", 0, 0.585, 1, 0.605)
    for board in range(1, 5):
        canvas.box(seam, 0, 0.6 + 0.08 * board, 1, 0.604 + 0.08 * board)
    if canvas.rng.random() < 0.6:
        canvas.dot(rug, 0.5, 0.82, 0.44, 0.13)
        canvas.dot("ffffff", 0.5, 0.82, 0.40, 0.115, alpha=70)


def _paint_table(canvas: Canvas) -> None:
    _paint_wall(canvas, 0.44)
    top, edge, grain = canvas.choose_palette("table")
    canvas.box(top, 0, 0.44, 1, 0.955)
    for line in range(4):
        y = 0.52 + 0.11 * line + canvas.rng.uniform(-0.02, 0.02)
        canvas.line(grain, [(0, y), (0.5, y + canvas.rng.uniform(-0.01, 0.01)), (1, y)], 0.006)
    canvas.box(edge, 0, 0.955, 1, 1)


def _paint_pastel(canvas: Canvas) -> None:
    ground, tint = canvas.choose_palette("pastel")
    canvas.box(ground, 0, 0, 1, 1)
    pattern = canvas.rng.randrange(4)
    if pattern == 0:
        canvas.dot(tint, canvas.rng.uniform(0.4, 0.6), canvas.rng.uniform(0.4, 0.6), 0.42)
    elif pattern == 1:
        for row, column in product(range(7), range(8)):
            canvas.dot(tint, column / 7 + 0.07 * (row % 2), row / 6, 0.02)
    elif pattern == 2:
        canvas.hill(tint, canvas.rng.uniform(0.5, 0.7), 0.06)
    else:
        for stripe in range(6):
            canvas.box(tint, 0, stripe / 6, 1, stripe / 6 + 1 / 12, alpha=150)


_PAINTERS: dict[str, Callable[[Canvas], None]] = {
    painter.__name__.removeprefix("_paint_"): painter
    for painter in (
        *(_paint_meadow, _paint_hills, _paint_night, _paint_street, _paint_beach, _paint_sea),
        *(_paint_underwater, _paint_snow, _paint_desert, _paint_room, _paint_table, _paint_pastel),
    )
}
