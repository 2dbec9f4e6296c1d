"""A square to paint on, in coordinates from 0 to 1 and hexadecimal colours."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np
from PIL import Image, ImageDraw

FINER = 2  # painted at twice the size and shrunk, for smooth edges


class Canvas:
    """A square whose coordinates run from 0 to 1."""

    def __init__(self, size: int, rng: Random) -> None:
        self.size = size * FINER
        self.rng = rng
        self.image = Image.new("RGB", (self.size, self.size))
        self.draw = ImageDraw.Draw(self.image, "RGBA")

    def gradient(self, top: str, bottom: str, start: float = 0.0, end: float = 1.0) -> None:
        """A vertical blend between two heights."""
        first, last = round(start * self.size), round(end * self.size)
        steps = np.linspace(0.0, 1.0, max(last - first, 1))[:, None]
        rows = np.rint((1 - steps) * np.array(_rgb(top)) + steps * np.array(_rgb(bottom))).astype(np.uint8)
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
        self.draw.polygon([(x * self.size, y * self.size) for x, y in points], (*_rgb(colour), alpha))

    def box(self, colour: str, x0: float, y0: float, x1: float, y1: float, alpha: int = 255) -> None:
        corners = [round(value * self.size) for value in (x0, y0, x1, y1)]
        if corners[2] > corners[0] and corners[3] > corners[1]:
            self.draw.rectangle((corners[0], corners[1], corners[2] - 1, corners[3] - 1), (*_rgb(colour), alpha))

    def dot(self, colour: str, x: float, y: float, rx: float, ry: float | None = None, alpha: int = 255) -> None:
        rx, ry = rx * self.size, (rx if ry is None else ry) * self.size
        middle = x * self.size, y * self.size
        self.draw.ellipse((middle[0] - rx, middle[1] - ry, middle[0] + rx, middle[1] + ry), (*_rgb(colour), alpha))

    def line(self, colour: str, points: list[tuple[float, float]], width: float, alpha: int = 255) -> None:
        self.draw.line(
            [(x * self.size, y * self.size) for x, y in points],
            (*_rgb(colour), alpha),
            max(1, round(width * self.size)),
            joint="curve",
        )

    def scatter(self, paint: Callable[[float, float], None], count: int, top: float, bottom: float) -> None:
        for _ in range(count):
            paint(self.rng.uniform(0.02, 0.98), self.rng.uniform(top, bottom))

    def finished(self) -> Image.Image:
        """The painting at its proper size."""
        return self.image.resize((self.size // FINER, self.size // FINER), Image.Resampling.BOX)


def _rgb(code: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(code.removeprefix("#"))
    return red, green, blue
