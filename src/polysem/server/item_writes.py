"""Changing the index: a picture is on disk before the index speaks of it, and the index changes whole or not at all.

The writer is opened for each change alone, so that `polysem add` and other writers have their turn; while one of them
has it, clients are told to come back. Pictures that came through the API lie in the index's own folder, under the hash
of their content: sending one again changes nothing. A crash between the two steps leaves a file that no item speaks
of, which is used if the picture is sent again.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polysem.server.errors import ApiError
from polysem.server.images import decoded, format_of

if TYPE_CHECKING:
    from polysem.search import Index
    from polysem.search.store import Side

PICTURES = "pictures"
_ENDINGS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif"}


def add(
    index: Index,
    data: bytes,
    key: str | None,
    captions: Sequence[str],
    labels: Sequence[str],
    metadata: Mapping[str, Any],
    pixels: int,
) -> dict[str, Any]:
    """Add one picture with what is said of it; under the same id, it takes the old one's place."""
    from polysem.data.collection import Collection, Item, Media
    from polysem.search import Index as Opened

    folder = _folder(index)
    decoded(data, pixels)
    name = hashlib.sha256(data).hexdigest()[:32] + _ENDINGS[format_of(io.BytesIO(data))]
    key = key or name
    before = [item.path for item in index.items([key], "image")]
    _keep(folder, name, data)
    item = Item(key, Media(folder, name), tuple(captions), tuple(labels), metadata=dict(metadata))
    with Opened.open(index.place, write=True, model=index.model) as writer:
        report = writer.add(Collection("upload", "image", [item]))
        if report.skipped:
            raise ApiError(400, "This picture cannot be added: it could not be read back.")
        # A picture without captions takes the place of one with them, whose captions `add` would leave.
        gone = 0 if captions else writer.remove([text.id for text in writer.captions(key)], "text")
        _forget(writer, [path for path in before if path != str(folder / name)])
    return {
        "id": key,
        "new": report.new,
        "replaced": report.replaced,
        "unchanged": report.unchanged,
        "removed": report.removed + gone,
    }


def remove(index: Index, key: str, side: Side | None) -> int:
    """Remove an item, the captions that came with it, and its picture if that came through the API."""
    from polysem.search import Index as Opened

    paths = [item.path for item in index.items([key], side) if item.side == "image"]
    with Opened.open(index.place, write=True) as writer:
        removed = writer.remove([key], side)
        _forget(writer, paths)
    return removed


def _folder(index: Index) -> Path:
    place = Path(index.place)
    if not place.is_dir():  # an address of a Milvus server
        raise ApiError(409, "This index has no folder of its own to keep pictures in. Add them with `polysem add`.")
    return place.absolute() / PICTURES


def _keep(folder: Path, name: str, data: bytes) -> None:
    """Write the file whole or not at all."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    if path.exists() and path.read_bytes() == data:
        return
    partial = folder / f".{name}.{secrets.token_hex(4)}.partial"
    try:
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        if os.name == "posix":
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    finally:
        partial.unlink(missing_ok=True)


def _forget(index: Index, paths: Sequence[str | None]) -> None:
    """Delete pictures of ours that no item speaks of any more."""
    folder = Path(index.place).absolute() / PICTURES
    for path in (Path(each) for each in paths if each is not None):
        if path.parent == folder:
            (item,) = index.pictures([path])
            if item.id == path.as_posix():  # what `pictures` calls a file that the index does not know
                with suppress(OSError):
                    path.unlink()
