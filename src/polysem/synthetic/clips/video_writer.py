"""Pictures to a small MP4 file that every browser plays: H.264 where PyAV has an encoder for it, else MPEG-4."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from polysem.data.video import import_pyav

_CODECS = ("libx264", "mpeg4")
# With weighted prediction and the tree of macroblocks the same frames gave other bytes now and then; which of the two
# it was has not been found out.
_X264 = {"crf": "23", "preset": "veryfast", "x264-params": "weightp=0:mbtree=0"}
_KEYFRAMES = 2
"""Seconds from one frame that stands by itself to the next: a player that jumps starts from there."""


def codec() -> str:
    """The best encoder of this installation."""
    av = import_pyav()
    known: Any = av.codec.codecs_available
    return next(name for name in _CODECS if name in known)


def write_video(path: Path, frames: Iterable[Image.Image], size: int, fps: int) -> None:
    """The same frames give the same bytes: on one thread, and without date or version in the header."""
    av, name = import_pyav(), codec()
    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        stream = container.add_stream(name, rate=fps)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.gop_size = _KEYFRAMES * fps
        stream.options = _X264 if name == "libx264" else {"qscale": "4"}
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
