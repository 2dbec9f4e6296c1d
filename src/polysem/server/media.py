"""Files of the index as HTTP sends them: images whole or as thumbnails, videos in byte ranges."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from polysem.errors import PolysemError
from polysem.server.errors import ApiError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "TIFF": "image/tiff",
}
"""What is decoded at all, and its media type. Pillow knows dozens more, with dozens of parsers."""
_AS_THEY_ARE = frozenset({"JPEG", "PNG", "WEBP", "GIF"})
"""What every browser shows; the others are given out as PNG."""
SIZES = (160, 320, 640, 1280)
"""Thumbnails are made in these sizes: the next larger one is given."""
LARGEST_FILE = 256 << 20


def decode_upload(data: bytes, pixels: int) -> Image:
    """Decode an uploaded picture, upright and RGB."""
    from polysem.data.images import ImageError, ImageSizeError, decode_image

    try:
        return decode_image(io.BytesIO(data), "The picture", pixels, tuple(FORMATS))
    # Decoders' own words may name files of the library.
    except ImageSizeError:
        raise ApiError(413, f"The picture has more than {pixels:,} pixels. Shrink it.") from None
    except ImageError:
        kinds = ", ".join(FORMATS)
        raise ApiError(400, f"This is no picture that can be read. {kinds} are, if they are whole.") from None


def detect_image_format(file: BinaryIO) -> str:
    """What the decoder takes a file for, whatever it is called; the file is at its beginning again."""
    from PIL import Image

    try:
        with Image.open(file, formats=tuple(FORMATS)) as image:
            return str(image.format)
    except Exception as error:  # decoders raise almost anything
        raise ApiError(404, "The picture of this item cannot be read any more.") from error
    finally:
        file.seek(0)


def encode_thumbnail(image: Image, size: int) -> bytes:
    """At most `size` wide and high, as JPEG. Re-encoded: nothing but the pixels stays."""
    from PIL.Image import Resampling

    small = image.copy()
    small.thumbnail((size, size), Resampling.LANCZOS)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=85)
    return out.getvalue()


def open_item_file(stored: str | None, largest: int | None = LARGEST_FILE, features: bool = False) -> BinaryIO:
    """The file of an item, by the path that the index has for it. largest: in bytes; None where no more than a part of
    it is ever read at once. features: a file of features will do."""
    gone = ApiError(404, "This item has no picture here.")
    if stored is None or (stored.endswith(".npy") and not features):
        raise gone
    path = Path(stored)
    try:
        folder, real = path.parent.resolve(strict=True), path.resolve(strict=True)
        if not real.is_relative_to(folder):
            raise gone
        # Not followed and not waited for: it may have become a link or a pipe since.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(real, flags)
    except (OSError, ValueError, RuntimeError):  # ValueError: a NUL; RuntimeError: links in a circle
        raise gone from None
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or (largest is not None and state.st_size > largest):
        os.close(descriptor)
        raise gone
    return os.fdopen(descriptor, "rb")


def thumbnail_size(size: int | None) -> int | None:
    """The next larger of the sizes that are made, None for the file as it is."""
    return None if size is None else next((each for each in SIZES if each >= size), SIZES[-1])


def read_image(stored: str | None, size: int | None, pixels: int) -> tuple[bytes, str]:
    """An item's picture and its media type. size: of a thumbnail, one of `SIZES`; None for the file as it is."""
    from polysem.data.images import decode_image

    with open_item_file(stored) as file:
        kind = detect_image_format(file)
        if size is None and kind in _AS_THEY_ARE:
            return file.read(LARGEST_FILE), FORMATS[kind]
        try:
            image = decode_image(file, "picture", pixels, tuple(FORMATS), size)
        except PolysemError:
            raise ApiError(404, "The picture of this item cannot be read any more.") from None
    if size is not None:
        return encode_thumbnail(image, size), "image/jpeg"
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue(), "image/png"


def file_stamp(stored: str | None) -> str:
    """Changes when the file does: what a browser's copy is compared by."""
    with open_item_file(stored, largest=None) as file:
        state = os.fstat(file.fileno())
        return f"{state.st_mtime_ns:x}-{state.st_size:x}"


PART = 4 << 20
"""Bytes of a file in one answer to a request for a range. A player that wants more asks again, so that nobody's slow
line holds a thread, a file or much memory."""
_BLOCK = 1 << 18
_HEAD = 64
KINDS = ("video/mp4", "video/quicktime", "video/webm", "video/x-matroska", "video/x-msvideo")
# A range has at most 15 digits: more is no file's.
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)


@dataclass(frozen=True)
class ByteRange:
    """Bytes `start` to `end`, which is one past the last, of a file of `size` bytes."""

    start: int
    end: int
    size: int

    @property
    def described(self) -> str:
        """Content-Range."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


def detect_video_type(file: BinaryIO) -> str:
    """The media type that the first bytes of a file tell; the file is at its beginning again."""
    head = file.read(_HEAD)
    file.seek(0)
    if head[4:8] == b"ftyp":
        return "video/quicktime" if head[8:12] == b"qt  " else "video/mp4"
    if head[:4] == b"\x1aE\xdf\xa3" and (b"webm" in head or b"matroska" in head):
        return "video/webm" if b"webm" in head else "video/x-matroska"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "video/x-msvideo"
    raise ApiError(404, "This item has no video here.")


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The part that a Range header asks for; None for the whole file.

    Several ranges at once, other units and what cannot be read are passed over, as HTTP wants it; one that begins
    behind the end is an error. More than `PART` is never given at once.
    """
    found = None if header is None else _RANGE.fullmatch(header.strip())
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":  # the last so many bytes
        start, end = max(0, size - int(found[2])), size if int(found[2]) else 0
    else:
        start, end = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
        if found[2] and int(found[2]) < start:
            return None
    if start >= size or end <= start:
        raise ApiError(416, "This range is not in the file.", headers={"Content-Range": f"bytes */{size}"})
    return ByteRange(start, min(end, start + PART), size)


def read_range(stored: str | None, header: str | None, tag: str | None) -> tuple[ByteRange, str, bytes, str] | None:
    """The part a Range header asks for, the file's tag, the bytes and their media type; None where the whole is asked.

    tag: of the file that the client has the other parts of. If it is another one by now, only the whole helps.
    """
    with open_item_file(stored, largest=None) as file:
        kind, state = detect_video_type(file), os.fstat(file.fileno())
        if tag is not None and tag != etag(state):
            return None
        part = parse_range(header, state.st_size)
        if part is None:
            return None
        file.seek(part.start)
        return part, etag(state), file.read(part.end - part.start), kind


@dataclass(frozen=True)
class VideoFile:
    """A whole file, block by block. It is closed when all of it was read, or with `close`."""

    file: BinaryIO
    kind: str
    size: int
    tag: str

    def __iter__(self) -> Iterator[bytes]:
        with self.file:
            left = self.size  # as announced, should the file grow meanwhile
            while left and (block := self.file.read(min(left, _BLOCK))):
                left -= len(block)
                yield block


def open_video(stored: str | None) -> VideoFile:
    file = open_item_file(stored, largest=None)
    try:
        state = os.fstat(file.fileno())
        return VideoFile(file, detect_video_type(file), state.st_size, etag(state))
    except BaseException:
        file.close()
        raise


def etag(state: os.stat_result) -> str:
    """Changes when the file does."""
    return f'"{state.st_mtime_ns:x}-{state.st_size:x}"'


def read_frame(stored: str | None, time: float | None, size: int | None, pixels: int) -> bytes:
    """The frame that is on the screen at a time, as JPEG; the one in the middle without a time."""
    from polysem.data.video import decode_still

    with open_item_file(stored, largest=None) as file:
        detect_video_type(file)
        try:
            image = decode_still(file, "video", time, pixels)
        except PolysemError:
            raise ApiError(404, "No frame of this item's video can be shown.") from None
    return encode_thumbnail(
        image, SIZES[-1] if size is None else next((each for each in SIZES if each >= size), SIZES[-1])
    )
