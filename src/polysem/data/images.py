"""Reading pictures that other people made: any mode, any rotation, broken, or made to break the reader."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from polysem.errors import InputError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
MAX_PIXELS = 100_000_000
"""A picture of more is refused: a few kilobytes on disk can be gigabytes in memory."""
_EXIF_DATE = re.compile(r"(\d{4}):(\d\d):(\d\d) (\d\d:\d\d:\d\d)")


class ImageError(InputError):
    """A picture that cannot be read. The message says which and why."""


class ImageSizeError(ImageError):
    """A picture of too many pixels."""


def is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS


def load_image(path: Path, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture as upright RGB: the first frame of an animation, EXIF rotation applied, transparency on white."""
    measure_file(path, ImageError)
    return decode_image(path, str(path), max_pixels)


def measure_file(path: Path, failure: type[InputError]) -> int:
    """The size of a file in bytes; one that is missing or empty is a `failure`."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise failure(f"{path}: cannot be opened ({error.strerror}). Check that the file is there.") from None
    if size == 0:
        raise failure(f"{path}: the file is empty (0 bytes). Copy or download it again.")
    return size


def decode_image(
    source: Path | BinaryIO,
    name: str,
    max_pixels: int = MAX_PIXELS,
    formats: tuple[str, ...] | None = None,
    at_least: int | None = None,
) -> Image.Image:
    """`load_image` of an open file too.

    Args:
        name: what errors call it.
        formats: Pillow's names of those to accept.
        at_least: for thumbnails. A JPEG may come smaller, but no smaller than this many pixels each way: many times
            faster.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, and of a size whose limit is ours and firm
            with Image.open(source, formats=formats) as image:
                width, height = image.size
                if width * height > max_pixels:
                    large = f"{width} x {height} pixels are more than the limit of {max_pixels:,}"
                    raise ImageSizeError(f"{name}: {large}. Shrink it, or raise max_pixels if you trust it.")
                if at_least is not None:
                    image.draft(None, (at_least, at_least))
                image.load()
                return _to_upright_rgb(image)
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{name}: not a picture that Pillow knows.") from None
    except Image.DecompressionBombError as error:
        raise ImageSizeError(f"{name}: {error}") from None
    # Pillow's decoders raise almost anything on a damaged file.
    except (OSError, SyntaxError, ValueError, IndexError, TypeError, EOFError, MemoryError, Warning) as error:
        raise ImageError(f"{name}: damaged or truncated ({error}).") from None


def read_exif(path: Path) -> dict[str, Any]:
    """What a camera noted: `taken` ("2021-07-04 10:30:00"), `year` and `camera`. Reads the file's header alone."""
    try:
        with Image.open(path) as image:
            exif = image.getexif()
            details = exif.get_ifd(ExifTags.IFD.Exif)
    # A header can be damaged in as many ways as a picture; what it says is a convenience.
    except Exception:
        return {}
    values: dict[str, Any] = {}
    date = _EXIF_DATE.match(str(details.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime) or ""))
    if date and int(date[1]) > 0:
        values |= {"taken": f"{date[1]}-{date[2]}-{date[3]} {date[4]}", "year": int(date[1])}
    model = exif.get(ExifTags.Base.Model)
    if isinstance(model, str) and (name := model.replace("\0", "").strip()):
        values["camera"] = name
    return values


def _to_upright_rgb(image: Image.Image) -> Image.Image:
    upright = ImageOps.exif_transpose(image)
    if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
        layered = upright.convert("RGBA")
        white = Image.new("RGBA", layered.size, "white")
        return Image.alpha_composite(white, layered).convert("RGB")
    if upright.mode in ("I", "I;16", "I;16B", "F"):
        # 16-bit and float greyscale hold more than 256 levels; Pillow's own conversion would clip them all to white.
        low, high = (float(level) for level in upright.getextrema())  # type: ignore[arg-type]
        scale = 255.0 / (high - low) if high != low else 0.0
        upright = upright.convert("F").point(lambda v: v * scale - low * scale).convert("L")
    return upright.convert("RGB")


# A truncated file is an error to report, never a picture with a grey half.
ImageFile.LOAD_TRUNCATED_IMAGES = False
