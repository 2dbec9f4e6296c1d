"""Items of the index: metadata, image, video; adding and removing."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Form, Header, Path, Query, Request, Response, UploadFile
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from polysem.server import item_writes, media
from polysem.server.auth import AuthenticatedRoute, Reading, Writing
from polysem.server.errors import ApiError
from polysem.server.routes.schemas import (
    ERRORS,
    AddAnswer,
    CaptionInfo,
    ErrorAnswer,
    ItemAnswer,
    NewItem,
    RemoveAnswer,
    Side,
)
from polysem.server.routes.shared import BASE, Shared, decode_id, image_address, is_video, video_address
from polysem.server.state import State

if TYPE_CHECKING:
    from polysem.search.store import IndexedItem

router = APIRouter(prefix=BASE, route_class=AuthenticatedRoute, tags=["items"], responses=ERRORS)
Id = Annotated[str, Path(description="The item's id, percent-encoded.", min_length=1)]
OfSide = Annotated[Side | None, Query(description="Where an id is on both sides.")]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_VIDEO_TYPES: dict[str, Any] = dict.fromkeys(media.KINDS, _BINARY)


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
    state: Shared,
    request: Request,
    id: Id,  # noqa: A002
    side: OfSide = None,
    size: Annotated[int | None, Query(ge=16, le=1280, description="Of a thumbnail; the original if left out.")] = None,
    at: Annotated[
        float | None,
        Query(ge=0, le=1e6, description="Of a video: the second whose frame is wanted; its middle if not."),
    ] = None,
) -> Response:
    """The picture of an item, as it is or small; of a video a frame. Only pictures of the index can be had."""
    found, size = await find_item(state, id, side), media.thumbnail_size(size)
    # Down to the hundredth of a second, less than any frame lasts: up might be behind a cut.
    moving, at = is_video(found.path), None if at is None else math.floor(100 * at) / 100
    tag = f'"{await state.workers.run(media.file_stamp, found.path)}-{size or 0}{f"-{at}" if moving else ""}"'
    headers = {"Cache-Control": "private, max-age=300", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    small = None if size is None and not moving else state.thumbnails.get((found.path, tag))
    if small is not None:
        return Response(small, media_type="image/jpeg", headers=headers)
    pixels = state.settings.limits.pixels
    if moving:
        data, kind = await state.workers.run(media.read_frame, found.path, at, size, pixels), "image/jpeg"
    else:
        data, kind = await state.workers.run(media.read_image, found.path, size, pixels)
    if size is not None or moving:
        with suppress(ValueError):  # larger than the whole cache
            state.thumbnails[found.path, tag] = data
    return Response(data, media_type=kind, headers=headers)


@router.get(
    "/items/{id:path}/video",
    dependencies=[Reading],
    response_class=Response,
    responses={
        200: {"description": "The whole video.", "content": _VIDEO_TYPES},
        206: {
            "description": "A part of it, as much as was asked for or less.",
            "content": _VIDEO_TYPES,
        },
        304: {"description": "The same as before."},
        416: {"model": ErrorAnswer, "description": "The range begins behind the end."},
    },
)
async def item_video(
    state: Shared,
    id: Id,  # noqa: A002
    side: OfSide = None,
    range: Annotated[str | None, Header(description="bytes=FIRST-LAST")] = None,  # noqa: A002
    if_range: Annotated[str | None, Header(description="Only if the video still has this ETag.")] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The video of an item. Only videos of the index can be had."""
    found = await find_item(state, id, side)
    headers = {"Accept-Ranges": "bytes", "Cache-Control": "private, max-age=300"}
    if range is not None:
        given = await state.workers.run(media.read_range, found.path, range, if_range)
        if given is not None:
            part, tag, data, kind = given
            own = {"Content-Range": part.described, "ETag": tag}
            return Response(data, 206, media_type=kind, headers={**headers, **own})
    whole = await state.workers.run(media.open_video, found.path)
    headers |= {"ETag": whole.tag, "Content-Length": str(whole.size)}
    if if_none_match == whole.tag and range is None:
        whole.file.close()
        return Response(status_code=304, headers={name: headers[name] for name in ("ETag", "Cache-Control")})
    return StreamingResponse(iter(whole), media_type=whole.kind, headers=headers)


@router.get("/items/{id:path}", response_model=ItemAnswer, dependencies=[Reading])
async def item(state: Shared, id: Id, side: OfSide = None) -> ItemAnswer:  # noqa: A002
    """What the index knows of an item."""
    found = await find_item(state, id, side)
    said = await state.workers.run(state.index.captions, found.id) if found.side == "image" else []
    return ItemAnswer(
        id=found.id,
        side=found.side,
        caption=found.caption,
        labels=list(found.labels),
        metadata=found.metadata,
        image=image_address(found.id, found.side, found.path),
        video=video_address(found.id, found.side, found.path),
        captions=[CaptionInfo(id=each.id, caption=each.caption) for each in said],
    )


@router.post("/items", status_code=201, response_model=AddAnswer, dependencies=[Writing])
async def add(
    state: Shared,
    file: UploadFile,
    item: Annotated[str, Form(description="What is said of it, as JSON: id, captions, labels, metadata.")] = "{}",
) -> AddAnswer:
    """Add a picture; under an id that is there, it takes the old one's place."""
    threads = state.encoding.model_thread  # an index has one writer: changes come one after the other
    try:
        about = NewItem.model_validate_json(item)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["item", *map(str, first["loc"])])
        raise ApiError(400, f"{place}: {first['msg'].removeprefix('Value error, ')}.") from None
    if state.model.image.encoder.takes == "features":
        raise ApiError(400, "This index's model reads precomputed features, not pictures.")
    said = (about.id, about.captions, about.labels, about.metadata)
    async with state.decoding:
        done = await threads.run(item_writes.add, state.index, await file.read(), *said, state.settings.limits.pixels)
    return AddAnswer(**done)


@router.delete("/items/{id:path}", response_model=RemoveAnswer, dependencies=[Writing])
async def remove(state: Shared, id: Id, side: OfSide = None) -> RemoveAnswer:  # noqa: A002
    """Remove an item, and the captions that came with it."""
    found = await find_item(state, id, side)
    return RemoveAnswer(removed=await state.encoding.model_thread.run(item_writes.remove, state.index, found.id, side))


async def find_item(state: State, raw: str, side: Side | None) -> IndexedItem:
    """The item that an address names."""
    found = await state.workers.run(state.index.items, [decode_id(raw)], side)
    if not found:
        raise ApiError(404, "The index holds no such item.")
    return found[0]
