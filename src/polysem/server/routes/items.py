"""Items of the index: metadata, image, video; adding and removing.

When an item is added, its picture is on disk before the index refers to it. Each commit is atomic; after a crash
between the commits, send the same request again: a file that no item refers to yet is used then. The writer is opened
for each change alone, so that `polysem add` and other writers get their turn; while one of them has it, clients get a
503. Pictures that came through the API lie in the index's own folder, named by the hash of their content.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Form, Header, Query, Request, Response, UploadFile
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from polysem.atomic_write import replace_file
from polysem.data.collection import Collection, Item, Media, Side
from polysem.server import media
from polysem.server.auth import AuthenticatedRoute, Reading, Writing
from polysem.server.errors import ApiError
from polysem.server.routes.schemas import ERRORS, AddAnswer, ErrorAnswer, ItemAnswer, NewItem, RemoveAnswer
from polysem.server.settings import BASE
from polysem.server.state import ServerState, State

if TYPE_CHECKING:
    from polysem.search import Index
    from polysem.search.store import IndexedItem

router = APIRouter(prefix=BASE, route_class=AuthenticatedRoute, tags=["items"], responses=ERRORS)
Id = Annotated[str, PathParameter(description="The item's id, percent-encoded.", min_length=1)]
OfSide = Annotated[Side | None, Query(description="Where an id is on both sides.")]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_VIDEO_TYPES: dict[str, Any] = dict.fromkeys(media.VIDEO_TYPES, _BINARY)
PICTURES = "pictures"
_EXTENSIONS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif"}
_CACHED = {"Cache-Control": "private, max-age=300"}


@router.get(
    "/items/{id:path}/image",
    dependencies=[Reading],
    response_class=Response,
    responses={
        200: {"description": "The picture.", "content": dict.fromkeys(media.FORMATS.values(), _BINARY)},
        304: {"description": "The same as before."},
    },
)
async def item_image(
    state: ServerState,
    request: Request,
    id: Id,  # noqa: A002
    side: OfSide = None,
    size: Annotated[int | None, Query(ge=16, le=1280, description="Of a thumbnail; the original if left out.")] = None,
    at: Annotated[float | None, Query(ge=0, le=1e6, description="Second of a video's frame; or the middle.")] = None,
) -> Response:
    """The picture of an item, as it is or small; of a video a frame. Only pictures of the index can be had."""
    path = (await find_item(state, id, side)).path
    size = None if size is None else next((each for each in media.SIZES if each >= size), media.SIZES[-1])
    # Down to the hundredth of a second, less than any frame lasts: up might be behind a cut.
    is_video, at = media.is_video(path), None if at is None else math.floor(100 * at) / 100
    tag = f'"{await state.workers.run(media.read_stamp, path)}-{size or 0}{f"-{at}" if is_video else ""}"'
    headers = {**_CACHED, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    made = size is not None or is_video
    cached = state.thumbnails.get((path, tag)) if made else None
    if cached is not None:
        return Response(cached, media_type="image/jpeg", headers=headers)
    read = partial(media.read_frame, path, at) if is_video else partial(media.read_image, path)
    data, kind = await state.workers.run(read, size, state.settings.limits.pixels)
    if made:
        with suppress(ValueError):  # larger than the whole cache
            state.thumbnails[path, tag] = data
    return Response(data, media_type=kind, headers=headers)


@router.get(
    "/items/{id:path}/video",
    dependencies=[Reading],
    response_class=Response,
    responses={
        200: {"description": "The whole video.", "content": _VIDEO_TYPES},
        206: {"description": "A part of it, as much as was asked for or less.", "content": _VIDEO_TYPES},
        304: {"description": "The same as before."},
        416: {"model": ErrorAnswer, "description": "The range begins behind the end."},
    },
)
async def item_video(
    state: ServerState,
    id: Id,  # noqa: A002
    side: OfSide = None,
    range: Annotated[str | None, Header(description="bytes=FIRST-LAST")] = None,  # noqa: A002
    if_range: Annotated[str | None, Header(description="Only if the video still has this ETag.")] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The video of an item. Only videos of the index can be had."""
    path = (await find_item(state, id, side)).path
    video = await state.workers.run(media.VideoFile.open, path, range, if_range)
    headers = {**_CACHED, "ETag": video.tag}
    if if_none_match == video.tag and range is None:
        video.file.close()
        return Response(status_code=304, headers=headers)
    headers["Accept-Ranges"] = "bytes"
    if video.part is None:
        headers["Content-Length"] = str(video.size)
        return StreamingResponse(iter(video), media_type=video.kind, headers=headers)
    headers["Content-Range"] = f"bytes {video.part[0]}-{video.part[1] - 1}/{video.size}"
    return Response(await state.workers.run(b"".join, video), 206, media_type=video.kind, headers=headers)


@router.get("/items/{id:path}", response_model=ItemAnswer, dependencies=[Reading])
async def item(state: ServerState, id: Id, side: OfSide = None) -> ItemAnswer:  # noqa: A002
    """What the index knows of an item."""
    found = await find_item(state, id, side)
    captions = await state.workers.run(state.index.captions, found.id) if found.side == "image" else []
    return ItemAnswer.model_validate({**found._asdict(), **media.make_urls(found), "captions": captions})


@router.post("/items", status_code=201, response_model=AddAnswer, dependencies=[Writing])
async def add(
    state: ServerState,
    file: UploadFile,
    item: Annotated[str, Form(description="What is said of it, as JSON: id, captions, labels, metadata.")] = "{}",
) -> AddAnswer:
    """Add a picture; under an id that is there, it takes the old one's place."""
    encoding = state.encoding
    try:
        about = NewItem.model_validate_json(item)
    except ValidationError as error:
        problems = [{**each, "loc": ("body", "item", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(problems) from None
    if encoding.model.image.encoder.takes == "features":
        raise ApiError(400, "This index's model reads precomputed features, not pictures.")
    async with state.decoding.admit():
        data, pixels = await file.read(), state.settings.limits.pixels
        # An index has one writer: changes come one after the other.
        counts = await encoding.model_thread.run(add_picture, state.index, data, about, pixels)
    return AddAnswer(**counts)


@router.delete("/items/{id:path}", response_model=RemoveAnswer, dependencies=[Writing])
async def remove(state: ServerState, id: Id, side: OfSide = None) -> RemoveAnswer:  # noqa: A002
    """Remove an item, and the captions that came with it."""
    found = await find_item(state, id, side)
    return RemoveAnswer(removed=await state.encoding.model_thread.run(remove_item, state.index, found.id, side))


async def find_item(state: State, raw: str, side: Side | None) -> IndexedItem:
    """The item of a URL, whose id is still percent-encoded so that it may hold slashes (see `RequestRewrite`)."""
    try:
        key = unquote_to_bytes(raw.encode("latin-1")).decode()
    except UnicodeError:
        raise ApiError(400, "The id in the URL is not UTF-8.") from None
    known = bool(key) and "\0" not in key and len(key) <= 1024
    items = await state.workers.run(state.index.items, [key], side) if known else []
    if not items:
        raise ApiError(404, "The index holds no such item.")
    return items[0]


def add_picture(index: Index, data: bytes, about: NewItem, pixels: int) -> dict[str, Any]:
    """Add one picture with its id, captions, labels and metadata; an item of the same id is replaced."""
    from polysem.search import Index as Opened

    if not Path(index.place).is_dir():  # an address of a Milvus server
        raise ApiError(409, "This index has no folder of its own to keep pictures in. Add them with `polysem add`.")
    media.decode_upload(data, pixels)
    folder = Path(index.place).absolute() / PICTURES
    name = hashlib.sha256(data).hexdigest()[:32] + _EXTENSIONS[media.detect_image_format(io.BytesIO(data))]
    key, path = about.id or name, folder / name
    before = [item.path for item in index.items([key], "image")]
    folder.mkdir(exist_ok=True)
    if not path.exists() or path.read_bytes() != data:
        with replace_file(path, durable=True) as partial:
            partial.write_bytes(data)
    item = Item(key, Media(folder, name), tuple(about.captions), tuple(about.labels), metadata=dict(about.metadata))
    with Opened.open(index.place, write=True, model=index.model) as writer:
        report = writer.add(Collection("upload", "image", [item]))
        if report.skipped:
            raise ApiError(400, "This picture cannot be added: it could not be read back.")
        # A picture without captions takes the place of one with them, whose captions `add` would leave.
        gone = 0 if about.captions else writer.remove([text.id for text in writer.captions(key)], "text")
        _delete_unreferenced(writer, [each for each in before if each != str(path)])
    counts = {name: getattr(report, name) for name in ("new", "replaced", "unchanged")}
    return {"id": key, **counts, "removed": report.removed + gone}


def remove_item(index: Index, key: str, side: Side | None) -> int:
    """Remove an item, the captions that came with it, and its picture if that came through the API."""
    from polysem.search import Index as Opened

    paths = [item.path for item in index.items([key], side) if item.side == "image"]
    with Opened.open(index.place, write=True) as writer:
        removed = writer.remove([key], side)
        _delete_unreferenced(writer, paths)
    return removed


def _delete_unreferenced(index: Index, paths: Sequence[str | None]) -> None:
    """Delete pictures in the index's own folder that no item refers to any more."""
    folder = Path(index.place).absolute() / PICTURES
    for path in (Path(each) for each in paths if each is not None):
        if path.parent == folder:
            (item,) = index.collect_files([path])
            if item.id == path.as_posix():  # the id that `collect_files` gives a file the index does not know
                with suppress(OSError):
                    path.unlink()
