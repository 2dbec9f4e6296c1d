"""Files of the index as HTTP sends them: images whole or as thumbnails, videos in byte ranges."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from polysem.errors import PolysemError
from polysem.server.errors import ApiError
from polysem.server.settings import BASE

if TYPE_CHECKING:
    from PIL.Image import Image

    from polysem.search import SearchResult
    from polysem.search.store import IndexedItem

FORMATS = {name: f"image/{name.lower()}" for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")}
"""What is decoded at all, and its media type. Pillow knows dozens more, with dozens of parsers."""
_BROWSER_FORMATS = frozenset({"JPEG", "PNG", "WEBP", "GIF"})
"""What every browser shows; the others are given out as PNG."""
SIZES = (160, 320, 640, 1280)
"""Thumbnails are made in these sizes: the next larger one is given."""
LARGEST_FILE = 256 << 20
PART = 4 << 20
"""Bytes of a file in one answer to a request for a range. A player that wants more asks again, so that nobody's slow
line holds a thread, a file or much memory."""
_BLOCK = 1 << 18
VIDEO_TYPES = ("video/mp4", "video/quicktime", "video/webm", "video/x-matroska", "video/x-msvideo")
# A range has at most 15 digits: no file is longer.
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)


def is_video(path: str | None) -> bool:
    """Whether an item's file is called as videos are; what it holds is looked at when it is opened."""
    from polysem.data.video import EXTENSIONS

    return path is not None and PurePath(path).suffix.lower() in EXTENSIONS


def make_urls(item: IndexedItem | SearchResult) -> dict[str, str | None]:
    """Where an item's picture (`image`) and its `video` can be had; None where it has none."""
    url, query = f"{BASE}/items/{quote(item.id, safe='')}", "?side=text" if item.side == "text" else ""
    has_picture = item.path is not None and not item.path.endswith(".npy")
    return {
        "image": f"{url}/image{query}" if has_picture else None,
        "video": f"{url}/video{query}" if is_video(item.path) else None,
    }


def decode_upload(data: bytes, pixels: int) -> Image:
    """Decode an uploaded picture, upright and RGB."""
    from polysem.data.images import ImageError, ImageSizeError, decode_image

    try:
        return decode_image(io.BytesIO(data), "The picture", pixels, tuple(FORMATS))
    # Decoders' own words may name files of the library.
    except ImageSizeError:
        raise ApiError(413, f"The picture has more than {pixels:,} pixels. Shrink it.") from None
    except ImageError:
        raise ApiError(400, f"The picture cannot be read. Send a whole {', '.join(FORMATS)} file.") from None


def decode_stored(file: BinaryIO, pixels: int, at_least: int | None = None) -> Image:
    """Decode the picture of an item, upright and RGB. at_least: see `decode_image`."""
    from polysem.data.images import ImageError, decode_image

    try:
        return decode_image(file, "picture", pixels, tuple(FORMATS), at_least)
    except ImageError:
        raise ApiError(404, "The picture of this item cannot be read any more.") from None


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

    small, out = image.copy(), io.BytesIO()
    small.thumbnail((size, size), Resampling.LANCZOS)
    small.save(out, "JPEG", quality=85)
    return out.getvalue()


def open_item_file(stored: str | None, largest: int | None = LARGEST_FILE, features: bool = False) -> BinaryIO:
    """Open the file of an item.

    Args:
        stored: the path that the index has for it.
        largest: in bytes; None where no more than a part of it is ever read at once.
        features: whether it may be a file of features.
    """
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


def make_stamp(file: BinaryIO) -> str:
    """Changes when the file does: what a browser's copy is compared by (ETag)."""
    state = os.fstat(file.fileno())
    return f"{state.st_mtime_ns:x}-{state.st_size:x}"


def read_stamp(stored: str | None) -> str:
    with open_item_file(stored, largest=None) as file:
        return make_stamp(file)


def read_image(stored: str | None, size: int | None, pixels: int) -> tuple[bytes, str]:
    """An item's picture and its media type. size: of a thumbnail, one of `SIZES`; None for the file as it is."""
    with open_item_file(stored) as file:
        kind = detect_image_format(file)
        if size is None and kind in _BROWSER_FORMATS:
            return file.read(LARGEST_FILE), FORMATS[kind]
        image = decode_stored(file, pixels, size)
    if size is not None:
        return encode_thumbnail(image, size), "image/jpeg"
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue(), "image/png"


def read_frame(stored: str | None, time: float | None, size: int | None, pixels: int) -> tuple[bytes, str]:
    """The frame that is on the screen at a time, the one in the middle without a time, and its media type."""
    from polysem.data.video import decode_still

    with open_item_file(stored, largest=None) as file:
        detect_video_type(file)
        try:
            image = decode_still(file, "video", time, pixels)
        except PolysemError:
            raise ApiError(404, "No frame of this item's video can be shown.") from None
    return encode_thumbnail(image, size or SIZES[-1]), "image/jpeg"


def detect_video_type(file: BinaryIO) -> str:
    """The media type by the first bytes of a file; the file is at its beginning again."""
    head = file.read(64)
    file.seek(0)
    if head[4:8] == b"ftyp":
        return "video/quicktime" if head[8:12] == b"qt  " else "video/mp4"
    if head[:4] == b"\x1aE\xdf\xa3" and (b"webm" in head or b"matroska" in head):
        return "video/webm" if b"webm" in head else "video/x-matroska"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "video/x-msvideo"
    raise ApiError(404, "This item has no video here.")


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Start and end of the part that a Range header asks for; None for the whole file.

    Several ranges at once, other units and what cannot be read are passed over, as HTTP wants it; one that begins
    behind the end is an error. More than `PART` is never given at once.
    """
    match = None if header is None else _RANGE.fullmatch(header.strip())
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":  # the last so many bytes
        start, end = max(0, size - int(match[2])), size if int(match[2]) else 0
    else:
        start, end = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None
    if start >= size or end <= start:
        raise ApiError(416, "This range is not in the file.", headers={"Content-Range": f"bytes */{size}"})
    return start, min(end, start + PART)


@dataclass(frozen=True)
class VideoFile:
    """An open video, block by block. It is closed when all was read, or with `file.close`.

    part: start and end of the part that was asked for; None for the whole.
    """

    file: BinaryIO
    kind: str
    size: int
    tag: str
    part: tuple[int, int] | None

    @classmethod
    def open(cls, stored: str | None, wanted: str | None = None, if_range: str | None = None) -> VideoFile:
        """wanted: the Range header. if_range: the tag of the file that the client has the other parts of; if it is
        another one by now, only the whole helps."""
        file = open_item_file(stored, largest=None)
        try:
            size, tag = os.fstat(file.fileno()).st_size, f'"{make_stamp(file)}"'
            kind, part = detect_video_type(file), parse_range(wanted, size) if if_range in (None, tag) else None
            file.seek(part[0] if part else 0)
            return cls(file, kind, size, tag, part)
        except BaseException:
            file.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        with self.file:
            start, end = self.part or (0, self.size)
            left = end - start  # as announced, should the file grow meanwhile
            while left and (block := self.file.read(min(left, _BLOCK))):
                left -= len(block)
                yield block
