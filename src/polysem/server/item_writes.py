"""Adding and removing items: a picture is on disk before the index refers to it, and a change is atomic.

The writer is opened for each change alone, so that `polysem add` and other writers get their turn; while one of them
has it, clients get a 503. Pictures that came through the API lie in the index's own folder, named by the hash of their
content: sending one again changes nothing. A crash between the two steps leaves a file that no item refers to, which
is used if the picture is sent again.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polysem.atomic_write import replace_file
from polysem.server.errors import ApiError
from polysem.server.media import decode_upload, detect_image_format

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
    """Add one picture with its id, captions, labels and metadata; an item of the same id is replaced."""
    from polysem.data.collection import Collection, Item, Media
    from polysem.search import Index as Opened

    folder = _pictures_folder(index)
    decode_upload(data, pixels)
    name = hashlib.sha256(data).hexdigest()[:32] + _ENDINGS[detect_image_format(io.BytesIO(data))]
    key = key or name
    before = [item.path for item in index.items([key], "image")]
    _store_picture(folder, name, data)
    item = Item(key, Media(folder, name), tuple(captions), tuple(labels), metadata=dict(metadata))
    with Opened.open(index.place, write=True, model=index.model) as writer:
        report = writer.add(Collection("upload", "image", [item]))
        if report.skipped:
            raise ApiError(400, "This picture cannot be added: it could not be read back.")
        # A picture without captions takes the place of one with them, whose captions `add` would leave.
        gone = 0 if captions else writer.remove([text.id for text in writer.captions(key)], "text")
        _delete_unreferenced(writer, [path for path in before if path != str(folder / name)])
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
        _delete_unreferenced(writer, paths)
    return removed


def _pictures_folder(index: Index) -> Path:
    place = Path(index.place)
    if not place.is_dir():  # an address of a Milvus server
        raise ApiError(409, "This index has no folder of its own to keep pictures in. Add them with `polysem add`.")
    return place.absolute() / PICTURES


def _store_picture(folder: Path, name: str, data: bytes) -> None:
    """Write the file whole or not at all, and durably."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    if path.exists() and path.read_bytes() == data:
        return
    with replace_file(path, durable=True) as partial:
        partial.write_bytes(data)


def _delete_unreferenced(index: Index, paths: Sequence[str | None]) -> None:
    """Delete pictures in the index's own folder that no item refers to any more."""
    folder = Path(index.place).absolute() / PICTURES
    for path in (Path(each) for each in paths if each is not None):
        if path.parent == folder:
            (item,) = index.pictures([path])
            if item.id == path.as_posix():  # the id that `pictures` gives a file the index does not know
                with suppress(OSError):
                    path.unlink()
