"""Real little videos, made on the spot."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

FPS = 8


def shade(value: int, size: tuple[int, int] = (32, 24)) -> Image.Image:
    """A grey picture."""
    return Image.new("RGB", size, (value, value, value))


def write(
    path: Path,
    frames: Iterable[Image.Image],
    codec: str = "libx264",
    fps: int = FPS,
    pixel_aspect: tuple[int, int] | None = None,
    options: dict[str, str] | None = None,
) -> Path:
    """A video of these pictures; the suffix says in which container."""
    pictures = list(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height = pictures[0].size
        stream.pix_fmt = "yuv420p"
        if pixel_aspect:
            stream.codec_context.sample_aspect_ratio = Fraction(*pixel_aspect)
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())
    return path


def ramp(path: Path, frames: int = 16, **how) -> Path:
    """Gets lighter with every frame: the shade tells the time."""
    return write(path, (shade(8 + 240 * i // max(frames - 1, 1)) for i in range(frames)), **how)


def noise(path: Path, seed: int, frames: int = 6, size: tuple[int, int] = (32, 24), **how) -> Path:
    """A video unlike any other."""
    draws = np.random.default_rng(seed)
    pictures = (draws.integers(0, 256, (size[1] // 4, size[0] // 4, 3), dtype=np.uint8) for _ in range(frames))
    return write(path, (Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST) for pixels in pictures), **how)


def sound(path: Path) -> Path:
    """A file without a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        for number in range(8):
            frame.pts = 1024 * number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def turned(path: Path) -> Path:
    """The same file, told as a phone does that it is to be shown a quarter turn clockwise."""
    content = bytearray(path.read_bytes())
    matrix = content.index(b"tkhd") + 4 + 40
    content[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    return path


def cut(path: Path, whole: Path, share: float) -> Path:
    """The first part of a file."""
    content = whole.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path
