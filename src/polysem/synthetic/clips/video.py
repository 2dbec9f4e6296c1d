"""The frames of a clip and the MP4 file they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from polysem.data.video import import_pyav
from polysem.synthetic.clips.storyboard import MARGIN, ClipMoment, ClipPlan, Pose
from polysem.synthetic.scenes.art import Art
from polysem.synthetic.scenes.painting import paint_backdrop

_LARGER = 1.6
"""Than in a scene of several objects: here each has the picture to itself."""
_MOST = 0.62
_CODECS = ("libx264", "mpeg4")
# With weighted prediction and the tree of macroblocks the same frames gave other bytes now and then; which of the two
# it was has not been found out.
_X264 = {"crf": "23", "preset": "veryfast", "x264-params": "weightp=0:mbtree=0"}
_KEYFRAMES = 2
"""Seconds from one frame that stands by itself to the next: a player that jumps starts from there."""


def paint_frames(plan: ClipPlan, art: Art, size: int, rng: Random) -> Iterator[Image.Image]:
    """Every frame, in order; one is held at a time."""
    backdrop = paint_backdrop(plan.backdrop.name, size, rng)
    for moment in plan.moments:
        sprites: dict[tuple[int, int, bool], Image.Image] = {}
        for number in range(moment.frames):
            pose = moment.action.pose(number / (moment.frames - 1), moment.place)
            x, y, width, height = _box(moment, pose, art, size)
            key = width, height, moment.mirrored != pose.mirrored
            if key not in sprites:
                sprites[key] = art.scale(moment.glyph, *key)
            frame = backdrop.copy()
            frame.paste(sprites[key], (x, y), sprites[key])
            yield frame


def _box(moment: ClipMoment, pose: Pose, art: Art, size: int) -> tuple[int, int, int, int]:
    """Left, top, width and height in pixels, wholly inside the picture."""
    share = min(moment.kind.size * _LARGER, _MOST)
    full = art.fit_size(moment.glyph, size * share)
    width, height = art.fit_size(moment.glyph, size * share * pose.scale)
    edge = round(size * MARGIN)
    left = edge + pose.x * (size - 2 * edge - full[0]) + (full[0] - width) / 2
    top = moment.zone.find_top(size, moment.depth, height) - size * pose.lift
    return round(left), round(min(max(top, edge), size - edge - height)), width, height


def choose_codec() -> str:
    """The best encoder of this installation."""
    known: Any = import_pyav().codec.codecs_available
    return next(name for name in _CODECS if name in known)


def write_video(path: Path, frames: Iterable[Image.Image], size: int, fps: int) -> None:
    """The same frames give the same bytes: on one thread, and without date or version in the header."""
    av, name = import_pyav(), choose_codec()
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
