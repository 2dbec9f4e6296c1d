"""One picture that stands for an item: the picture itself, or a frame of a video."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from PIL import Image

from polysem.data.images import MAX_PIXELS, load_image
from polysem.data.video import CONTAINERS, VideoError, is_video, pyav, upright

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_MOST_FRAMES = 1500
"""Decoded on the way from a keyframe to the wanted frame; of a video with keyframes further apart, the last of them."""


def still(path: Path, time: float | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture of a file, upright RGB. time: of a video, seconds from its beginning; its middle if left out."""
    if not is_video(path):
        return load_image(path, max_pixels)
    try:
        with path.open("rb") as file:
            return still_of(file, str(path), time, max_pixels)
    except OSError as error:
        raise VideoError(f"{path}: cannot be opened ({error.strerror}). Check that the file is there.") from None


def still_of(file: BinaryIO, name: str, time: float | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The frame of an open video that is on the screen at a time; before its beginning the first, after its end the
    last. name: what errors call it."""
    av = pyav()
    options = {"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": ""}
    try:
        with av.open(file, metadata_errors="ignore", options=options) as container:
            stream = _stream(container, name, max_pixels)
            return upright(_frame(container, stream, name, time), stream)
    except (av.error.FFmpegError, ValueError, OSError, EOFError, MemoryError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise VideoError(f"{name}: damaged, truncated or no video ({said}).") from None


def _stream(container: InputContainer, name: str, max_pixels: int) -> VideoStream:
    if not container.streams.video:
        raise VideoError(f"{name}: holds no moving picture.")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise VideoError(f"{name}: damaged, or coded in a way that is not known here.")
    stream.codec_context.thread_count = 1
    if stream.codec_context.width * stream.codec_context.height > max_pixels:
        raise VideoError(f"{name}: its frames are larger than the limit of {max_pixels:,} pixels.")
    return stream


def _frame(container: InputContainer, stream: VideoStream, name: str, time: float | None) -> VideoFrame:
    base, start = float(stream.time_base or 1), stream.start_time or 0
    length = stream.duration * base if stream.duration else (container.duration or 0) / 1_000_000
    wanted = min(max(0.0, length / 2 if time is None else time), max(length, 0.0))
    found = _shown(container, stream, start + round(wanted / base))
    if found is None:  # a jump beyond the last keyframe's reach finds nothing
        container.seek(0)
        found = _shown(container, stream, None)
    if found is None:
        raise VideoError(f"{name}: no frame of it can be decoded.")
    return found


def _shown(container: InputContainer, stream: VideoStream, at: int | None) -> VideoFrame | None:
    """The last frame that began by `at`; None of it: the first there is."""
    if at is not None:
        container.seek(at, stream=stream)
    shown: VideoFrame | None = None
    for number, frame in enumerate(container.decode(stream)):
        if shown is not None and (at is None or number > _MOST_FRAMES or (frame.pts is not None and frame.pts > at)):
            break
        shown = frame
    return shown
