"""Raw videos through PyAV: how long they are, and frames of them at even distances in time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from polysem.data.images import MAX_PIXELS
from polysem.environment.packages import install_command
from polysem.errors import InputError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

EXTENSIONS = frozenset({".mp4", ".webm", ".mkv", ".mov", ".avi", ".m4v"})
CONTAINERS = ("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi")
"""What FFmpeg calls the formats that are opened. It knows playlists too, which make it fetch other files."""
OPEN = {"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"}
_SEEK_FROM = 12.0
"""Seconds to the next wanted frame from which a jump pays: keyframes are seldom further apart than ten seconds."""
_MISSING = 0.1
"""Share of a video that may lack frames: encoders round durations, and a last frame may stand for a while."""
_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")


class VideoError(InputError):
    """A video that cannot be read. The message says which, what was found and what to do."""


@dataclass(frozen=True)
class Frame:
    """time: seconds from the beginning of the video."""

    image: Image.Image
    time: float


def is_video(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS


def frame_times(count: int, duration: float) -> list[float]:
    """Seconds at which `count` frames of a video are taken: the middles of as many equal intervals."""
    if count < 1:
        raise InputError(f"A video needs at least one frame, got {count}.")
    return [(i + 0.5) / count * duration for i in range(count)]


def video_duration(path: Path) -> float:
    """Length of the pictures in seconds, from the file's header where it says so; no frame is decoded."""
    with _opened(path) as (container, stream):
        return _duration(path, container, stream)


def sample_frames(path: Path, count: int, max_pixels: int = MAX_PIXELS) -> Iterator[Frame]:
    """`count` upright RGB frames at `frame_times`, one after the other: one frame is held at a time.

    A video with fewer frames gives some of them more than once: what stood on the screen at that time.
    """
    with _opened(path) as (container, stream):
        size = stream.codec_context.width * stream.codec_context.height
        if size > max_pixels:
            raise VideoError(
                f"{path}: frames of {stream.codec_context.width} x {stream.codec_context.height} pixels are more than "
                f"the limit of {max_pixels:,}. Make the video smaller, or raise max_pixels if you trust it."
            )
        duration = _duration(path, container, stream)
        for time, frame in _shown_at(path, container, stream, frame_times(count, duration), duration):
            yield Frame(upright(frame, stream), time)


def frame_at(path: Path, time: float) -> Image.Image:
    """What is on the screen at this time, in seconds; the last frame if the video ends earlier."""
    with _opened(path) as (container, stream):
        duration = _duration(path, container, stream)
        _, frame = next(_shown_at(path, container, stream, [min(max(time, 0.0), duration)], duration))
        return upright(frame, stream)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The file and its first moving picture; whatever FFmpeg says against it becomes a VideoError."""
    av = pyav()
    try:
        size = path.stat().st_size
    except OSError as error:
        raise VideoError(f"{path}: cannot be opened ({error.strerror}). Check that the file is there.") from None
    if size == 0:
        raise VideoError(f"{path}: the file is empty (0 bytes). Copy or download it again.")
    try:
        with av.open(str(path), metadata_errors="ignore", options=OPEN) as container:
            # A song's cover is a video stream to FFmpeg, with one frame.
            streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
            if not streams:
                held = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
                raise VideoError(f"{path}: holds no moving picture (only {held}). Leave it out, or give a video.")
            if streams[0].codec_context is None:
                raise VideoError(
                    f"{path}: its pictures are in a coding that this PyAV does not know. "
                    "Convert it: ffmpeg -i FILE -c:v libx264 NEW.mp4"
                )
            streams[0].codec_context.thread_count = 1  # those who read many videos do so side by side
            yield container, streams[0]
    except VideoError:  # a ValueError too, and it says already what is wrong
        raise
    except (av.error.FFmpegError, ValueError, OSError, EOFError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise VideoError(
            f"{path}: damaged, truncated or no video ({said}; {size:,} bytes). "
            "See whether a player opens it; if so, convert it: ffmpeg -i FILE -c:v libx264 NEW.mp4"
        ) from None


def pyav() -> Any:
    """The package, imported on first use: not everybody has videos."""
    try:
        return import_module("av")
    except ImportError as error:
        raise VideoError(f"Reading videos needs PyAV ({error}). Run: {install_command('video')}") from None


def _duration(path: Path, container: InputContainer, stream: VideoStream) -> float:
    """Of the pictures, not of a longer sound; counted from the packets if no header says it."""
    known = _own_duration(stream)
    if known is None and container.duration:
        known = container.duration / 1_000_000
    if known is None or known <= 0:
        known = _counted(container, stream)
    if known <= 0:
        raise VideoError(f"{path}: holds no frames (its length is 0 s). Copy or download it again.")
    return known


def _own_duration(stream: VideoStream) -> float | None:
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    said = _CLOCK.match(stream.metadata.get("DURATION", ""))  # as Matroska keeps it
    return int(said[1]) * 3600 + int(said[2]) * 60 + float(said[3]) if said else None


def _counted(container: InputContainer, stream: VideoStream) -> float:
    first, last = None, 0.0
    step = 1 / float(stream.average_rate) if stream.average_rate else 0.04
    for packet in container.demux(stream):
        if packet.pts is not None and packet.time_base is not None:
            start = float(packet.pts * packet.time_base)
            first = start if first is None else min(first, start)
            last = max(last, start + (float(packet.duration * packet.time_base) if packet.duration else step))
    container.seek(0)
    return 0.0 if first is None else last - first


def _shown_at(
    path: Path, container: InputContainer, stream: VideoStream, times: list[float], duration: float
) -> Iterator[tuple[float, VideoFrame]]:
    """For each time the frame that is on the screen then: the last one that began before it."""
    base = float(stream.time_base or 1)
    begin = (stream.start_time or 0) * base
    frames = container.decode(stream)
    shown = coming = next(frames, None)
    if shown is None:
        raise VideoError(f"{path}: no frame of it can be decoded. Copy or download it again.")
    for time in times:
        if coming is not None and time - _begins(coming, begin) > _SEEK_FROM:
            container.seek(round((begin + time) / base), stream=stream)
            frames = container.decode(stream)
            # A jump that finds nothing leaves the last frame before it, which the check below looks at.
            coming = next(frames, None)
        while coming is not None and _begins(coming, begin) <= time:
            shown, coming = coming, next(frames, None)
        if coming is None:
            _check_end(path, container, stream, _begins(shown, begin), time, duration)
        yield time, shown


def _begins(frame: VideoFrame, begin: float) -> float:
    return (frame.time or 0.0) - begin


def _check_end(
    path: Path, container: InputContainer, stream: VideoStream, last: float, time: float, duration: float
) -> None:
    """Raise if the frames end long before the length in the header: a part of the file is missing."""
    sound_may_go_on = _own_duration(stream) is None and len(container.streams) > 1
    if time - last > max(_MISSING * duration, 1.0) and not sound_may_go_on:
        raise VideoError(
            f"{path}: truncated: it should last {duration:.1f} s, and its frames end at {last:.1f} s. "
            "Copy or download it again."
        )


def upright(frame: VideoFrame, stream: VideoStream) -> Image.Image:
    """As a player shows it: square pixels, and turned as the camera noted."""
    image: Image.Image = frame.to_image()  # type: ignore[no-untyped-call]
    shape = stream.sample_aspect_ratio
    if shape and shape != 1:
        image = image.resize((max(1, round(image.width * float(shape))), image.height))
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
