"""Videos of the index, and no others, given out in parts, and the frames that stand for them.

As with pictures (`images`), which file belongs to an item is what the index says, and what it holds is what its first
bytes say: a file that is no video of a known kind is not given out, whatever it is called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from polysem.errors import PolysemError
from polysem.server.errors import ApiError
from polysem.server.images import SIZES, opened, thumbnail

PART = 4 << 20
"""Bytes of a file in one answer to a request for a range. A player that wants more asks again, so that nobody's slow
line holds a thread, a file or much memory."""
_BLOCK = 1 << 18
_HEAD = 64
KINDS = ("video/mp4", "video/quicktime", "video/webm", "video/x-matroska", "video/x-msvideo")
# A range has at most 15 digits: more is no file's.
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)


@dataclass(frozen=True)
class Part:
    """Bytes `start` to `end`, which is one past the last, of a file of `size` bytes."""

    start: int
    end: int
    size: int

    @property
    def described(self) -> str:
        """Content-Range."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


def kind_of(file: BinaryIO) -> str:
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


def wanted(header: str | None, size: int) -> Part | None:
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
    return Part(start, min(end, start + PART), size)


def part_of(stored: str | None, header: str | None, tag: str | None) -> tuple[Part, str, bytes, str] | None:
    """The part a Range header asks for, the file's tag, the bytes and their media type; None where the whole is asked.

    tag: of the file that the client has the other parts of. If it is another one by now, only the whole helps.
    """
    with opened(stored, largest=None) as file:
        kind, state = kind_of(file), os.fstat(file.fileno())
        if tag is not None and tag != tag_of(state):
            return None
        part = wanted(header, state.st_size)
        if part is None:
            return None
        file.seek(part.start)
        return part, tag_of(state), file.read(part.end - part.start), kind


@dataclass(frozen=True)
class Whole:
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


def whole(stored: str | None) -> Whole:
    file = opened(stored, largest=None)
    try:
        state = os.fstat(file.fileno())
        return Whole(file, kind_of(file), state.st_size, tag_of(state))
    except BaseException:
        file.close()
        raise


def tag_of(state: os.stat_result) -> str:
    """Changes when the file does."""
    return f'"{state.st_mtime_ns:x}-{state.st_size:x}"'


def poster(stored: str | None, time: float | None, size: int | None, pixels: int) -> bytes:
    """The frame that is on the screen at a time, as JPEG; the one in the middle without a time."""
    from polysem.data.video import decode_still

    with opened(stored, largest=None) as file:
        kind_of(file)
        try:
            image = decode_still(file, "video", time, pixels)
        except PolysemError:
            raise ApiError(404, "No frame of this item's video can be shown.") from None
    return thumbnail(image, SIZES[-1] if size is None else next((each for each in SIZES if each >= size), SIZES[-1]))
