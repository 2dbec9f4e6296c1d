"""Pictures from strangers, decoded within bounds, and pictures of the index, and no others, given out.

Which file belongs to an item is what the index says; no part of a path ever comes from a request. The file may have
been replaced since it was indexed: a link that leads out of the picture's own folder is not followed, and what is no
picture is not given out. Folders on the way may be links: those are its owner's arrangement.
"""

from __future__ import annotations

import io
import os
import stat
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


def decoded(data: bytes, pixels: int) -> Image:
    """An uploaded picture, upright and RGB."""
    from polysem.data.images import ImageError, decode_image

    try:
        return decode_image(io.BytesIO(data), "The picture", pixels, tuple(FORMATS))
    except ImageError as error:
        # Decoders' own words may name files of the library.
        large = "unfold to more" in str(error) or "decompression bomb" in str(error)
        if large:
            raise ApiError(413, f"The picture unfolds to more than {pixels:,} pixels. Shrink it.") from None
        kinds = ", ".join(FORMATS)
        raise ApiError(400, f"This is no picture that can be read. {kinds} are, if they are whole.") from None


def format_of(file: BinaryIO) -> str:
    """What the decoder takes a file for, whatever it is called; the file is at its beginning again."""
    from PIL import Image

    try:
        with Image.open(file, formats=tuple(FORMATS)) as image:
            return str(image.format)
    except Exception as error:  # decoders raise almost anything
        raise ApiError(404, "The picture of this item cannot be read any more.") from error
    finally:
        file.seek(0)


def thumbnail(image: Image, size: int) -> bytes:
    """At most `size` wide and high, as JPEG. Re-encoded: nothing but the pixels stays."""
    from PIL.Image import Resampling

    small = image.copy()
    small.thumbnail((size, size), Resampling.LANCZOS)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=85)
    return out.getvalue()


def opened(stored: str | None, largest: int | None = LARGEST_FILE, features: bool = False) -> BinaryIO:
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


def stepped(size: int | None) -> int | None:
    """The next larger of the sizes that are made, None for the file as it is."""
    return None if size is None else next((each for each in SIZES if each >= size), SIZES[-1])


def picture(stored: str | None, size: int | None, pixels: int) -> tuple[bytes, str]:
    """An item's picture and its media type. size: of a thumbnail, one of `SIZES`; None for the file as it is."""
    from polysem.data.images import decode_image

    with opened(stored) as file:
        kind = format_of(file)
        if size is None and kind in _AS_THEY_ARE:
            return file.read(LARGEST_FILE), FORMATS[kind]
        try:
            image = decode_image(file, "picture", pixels, tuple(FORMATS), size)
        except PolysemError:
            raise ApiError(404, "The picture of this item cannot be read any more.") from None
    if size is not None:
        return thumbnail(image, size), "image/jpeg"
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue(), "image/png"


def stamp(stored: str | None) -> str:
    """Changes when the file does: what a browser's copy is compared by."""
    with opened(stored, largest=None) as file:
        state = os.fstat(file.fileno())
        return f"{state.st_mtime_ns:x}-{state.st_size:x}"
