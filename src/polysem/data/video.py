"""Raw videos through PyAV: how long they are, frames at even distances in time, and one frame as a still."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from PIL import Image

from polysem.data.images import MAX_PIXELS, load_image, measure_file
from polysem.environment.packages import install_command
from polysem.errors import InputError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame as AvFrame
    from av.video.stream import VideoStream

EXTENSIONS = frozenset({".mp4", ".webm", ".mkv", ".mov", ".avi", ".m4v"})
CONTAINERS = ("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi")
"""What FFmpeg calls the formats that are opened. It knows playlists too, which make it fetch other files."""
_SEEK_FROM = 12.0
"""Seconds to the next wanted frame from which a jump pays: keyframes are seldom further apart than ten seconds."""
_MISSING = 0.1
"""Share of a video that may lack frames: encoders round durations, and a last frame may stand for a while."""
_MOST_FRAMES = 1500
"""Decoded for a still on the way from a keyframe to the wanted frame; where keyframes are rarer, the last of them."""
_CONVERT = "ffmpeg -i FILE -c:v libx264 NEW.mp4"
_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")


class VideoError(InputError):
    """A video that cannot be read. The message says which, what was found and what to do."""


@dataclass(frozen=True)
class VideoFrame:
    """A picture of a video. time: seconds from its beginning."""

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
    with _open_video(path, str(path)) as (container, stream):
        return _find_duration(path, container, stream)


class VideoMetadata(UserDict[str, Any]):
    """{"duration": seconds}, read from the file's header when first asked for; empty if it cannot be read.

    A collection opens at once however many videos it holds; decoding one will say what is wrong with it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        try:
            return {"duration": round(video_duration(self._path), 3)}
        except VideoError:
            return {}


def sample_frames(path: Path, count: int, max_pixels: int = MAX_PIXELS) -> Iterator[VideoFrame]:
    """Decode `count` upright RGB frames at `frame_times`, one after the other: one frame is held at a time.

    A video with fewer frames gives some of them more than once: what stood on the screen at that time. Frames of more
    than `max_pixels` are refused.
    """
    with _open_video(path, str(path), max_pixels) as (container, stream):
        duration = _find_duration(path, container, stream)
        base = float(stream.time_base or 1)
        begin = (stream.start_time or 0) * base
        frames = container.decode(stream)
        shown = coming = next(frames, None)
        if shown is None:
            raise VideoError(f"{path}: no frame of it can be decoded. Copy or download it again.")
        for time in frame_times(count, duration):
            if coming is not None and time - _start_time(coming, begin) > _SEEK_FROM:
                container.seek(round((begin + time) / base), stream=stream)
                frames = container.decode(stream)
                # A jump that finds nothing leaves the last frame before it, which the check below looks at.
                coming = next(frames, None)
            while coming is not None and _start_time(coming, begin) <= time:
                shown, coming = coming, next(frames, None)
            # Frames that end long before the length in the header: a part of the file is missing.
            sound_may_go_on = _read_stream_duration(stream) is None and len(container.streams) > 1
            last = _start_time(shown, begin)
            if coming is None and time - last > max(_MISSING * duration, 1.0) and not sound_may_go_on:
                ends = f"it should last {duration:.1f} s, and its frames end at {last:.1f} s"
                raise VideoError(f"{path}: truncated: {ends}. Copy or download it again.")
            yield VideoFrame(_to_upright(shown, stream), time)


def load_still(path: Path, time: float | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """One upright RGB picture that stands for a file: the picture itself, or the frame of a video at `time`."""
    return decode_still(path, str(path), time, max_pixels) if is_video(path) else load_image(path, max_pixels)


def decode_still(
    source: Path | BinaryIO, name: str, time: float | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """The upright RGB frame of a video that is on the screen at a time.

    Args:
        source: a path or an open file.
        name: what errors call it.
        time: seconds from its beginning; its middle if left out. Beyond the end it is the last frame.
    """
    with _open_video(source, name, max_pixels) as (container, stream):
        base, start = float(stream.time_base or 1), stream.start_time or 0
        length = stream.duration * base if stream.duration else (container.duration or 0) / 1_000_000
        clamped = min(max(0.0, length / 2 if time is None else time), max(length, 0.0))
        frame = _find_frame_before(container, stream, start + round(clamped / base))
        if frame is None:  # a jump beyond the last keyframe's reach finds nothing
            container.seek(0)
            frame = _find_frame_before(container, stream, None)
        if frame is None:
            raise VideoError(f"{name}: no frame of it can be decoded. Copy or download it again.")
        return _to_upright(frame, stream)


def _find_frame_before(container: InputContainer, stream: VideoStream, end: int | None) -> AvFrame | None:
    """The last frame that began by `end`, in units of the stream; without an end, the first there is."""
    if end is not None:
        container.seek(end, stream=stream)
    shown: AvFrame | None = None
    for number, frame in enumerate(container.decode(stream)):
        if shown is not None and (end is None or number > _MOST_FRAMES or (frame.pts is not None and frame.pts > end)):
            break
        shown = frame
    return shown


@contextmanager
def _open_video(
    source: Path | BinaryIO, name: str, max_pixels: int | None = None
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The file and its first moving picture; whatever FFmpeg says against it becomes a VideoError."""
    av = import_pyav()
    size = f"; {measure_file(source, VideoError):,} bytes" if isinstance(source, Path) else ""
    # An open file has no neighbours that a playlist could name.
    opened, protocols = (str(source), "file") if isinstance(source, Path) else (source, "")
    options = {"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": protocols}
    try:
        with av.open(opened, metadata_errors="ignore", options=options) as container:
            # A song's cover is a video stream to FFmpeg, with one frame.
            cover = av.stream.Disposition.attached_pic
            stream = next((each for each in container.streams.video if not each.disposition & cover), None)
            if stream is None:
                kinds = ", ".join(sorted({each.type for each in container.streams})) or "nothing"
                raise VideoError(f"{name}: holds no moving picture (only {kinds}). Leave it out, or give a video.")
            context = stream.codec_context
            if context is None:
                unknown = "its pictures are in a coding that this PyAV does not know"
                raise VideoError(f"{name}: {unknown}. Convert it: {_CONVERT}")
            if max_pixels is not None and context.width * context.height > max_pixels:
                large = f"frames of {context.width} x {context.height} pixels are more than the limit of {max_pixels:,}"
                raise VideoError(f"{name}: {large}. Make the video smaller, or raise max_pixels if you trust it.")
            context.thread_count = 1  # those who read many videos do so side by side
            yield container, stream
    except VideoError:  # a ValueError too, and it says already what is wrong
        raise
    except (av.error.FFmpegError, ValueError, OSError, EOFError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        what = f"{name}: damaged, truncated or not a video ({reason}{size})"
        raise VideoError(f"{what}. See whether a player opens it; if so, convert it: {_CONVERT}") from None


def import_pyav() -> Any:
    """The package, imported on first use: not everybody has videos."""
    try:
        return import_module("av")
    except ImportError as error:
        raise VideoError(f"Reading videos needs PyAV ({error}). Run: {install_command('video')}") from None


def _find_duration(path: Path, container: InputContainer, stream: VideoStream) -> float:
    """Of the pictures, not of a longer sound; counted from the packets if no header says it."""
    known = _read_stream_duration(stream)
    if known is None and container.duration:
        known = container.duration / 1_000_000
    if known is None or known <= 0:
        step = 1 / float(stream.average_rate) if stream.average_rate else 0.04
        starts, ends = [], []
        for packet in container.demux(stream):
            if packet.pts is not None and packet.time_base is not None:
                starts.append(float(packet.pts * packet.time_base))
                ends.append(starts[-1] + (float(packet.duration * packet.time_base) if packet.duration else step))
        container.seek(0)
        known = max(0.0, *ends) - min(starts) if starts else 0.0
    if known <= 0:
        raise VideoError(f"{path}: holds no frames (its length is 0 s). Copy or download it again.")
    return known


def _read_stream_duration(stream: VideoStream) -> float | None:
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    clock = _CLOCK.match(stream.metadata.get("DURATION", ""))  # as Matroska keeps it
    return int(clock[1]) * 3600 + int(clock[2]) * 60 + float(clock[3]) if clock else None


def _start_time(frame: AvFrame, begin: float) -> float:
    return (frame.time or 0.0) - begin


def _to_upright(frame: AvFrame, stream: VideoStream) -> Image.Image:
    """As a player shows it: square pixels, and turned as the camera noted."""
    image: Image.Image = frame.to_image()  # type: ignore[no-untyped-call]
    shape = stream.sample_aspect_ratio
    if shape and shape != 1:
        image = image.resize((max(1, round(image.width * float(shape))), image.height))
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
