"""Items of the index: their facts, their pictures, adding and removing them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Form, Path, Query, Request, Response, UploadFile
from pydantic import ValidationError

from polysem.server import images, item_writes, videos
from polysem.server.auth import Guarded, Reading, Writing
from polysem.server.errors import ApiError
from polysem.server.requests import NewItem, Side
from polysem.server.responses import ERRORS, Added, Caption, ItemAnswer, Removed
from polysem.server.routes.shared import BASE, Shared, image_address, is_video, key_of, video_address
from polysem.server.state import State

if TYPE_CHECKING:
    from polysem.search.store import Item

router = APIRouter(prefix=BASE, route_class=Guarded, tags=["items"], responses=ERRORS)
Id = Annotated[str, Path(description="The item's id, percent-encoded.", min_length=1)]
OfSide = Annotated[Side | None, Query(description="Where an id is on both sides.")]
_BINARY = {"schema": {"type": "string", "format": "binary"}}


@router.get(
    "/items/{id:path}/image",
    dependencies=[Reading],
    response_class=Response,
    responses={
        200: {"description": "The picture.", "content": dict.fromkeys(images.FORMATS.values(), _BINARY)},
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
    found, size = await item_of(state, id, side), images.stepped(size)
    # Down to the hundredth of a second, less than any frame lasts: up might be behind a cut.
    moving, at = is_video(found.path), None if at is None else math.floor(100 * at) / 100
    tag = f'"{await state.workers.run(images.stamp, found.path)}-{size or 0}{f"-{at}" if moving else ""}"'
    headers = {"Cache-Control": "private, max-age=300", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    small = None if size is None and not moving else state.thumbnails.get((found.path, tag))
    if small is not None:
        return Response(small, media_type="image/jpeg", headers=headers)
    pixels = state.settings.limits.pixels
    if moving:
        data, kind = await state.workers.run(videos.poster, found.path, at, size, pixels), "image/jpeg"
    else:
        data, kind = await state.workers.run(images.picture, found.path, size, pixels)
    if size is not None or moving:
        state.thumbnails.put((found.path, tag), data)
    return Response(data, media_type=kind, headers=headers)


@router.get("/items/{id:path}", response_model=ItemAnswer, dependencies=[Reading])
async def item(state: Shared, id: Id, side: OfSide = None) -> ItemAnswer:  # noqa: A002
    """What the index knows of an item."""
    found = await item_of(state, id, side)
    said = await state.workers.run(state.index.captions, found.id) if found.side == "image" else []
    return ItemAnswer(
        id=found.id,
        side=found.side,
        caption=found.caption,
        labels=list(found.labels),
        metadata=found.metadata,
        image=image_address(found.id, found.side, found.path),
        video=video_address(found.id, found.side, found.path),
        captions=[Caption(id=each.id, caption=each.caption) for each in said],
    )


@router.post("/items", status_code=201, response_model=Added, dependencies=[Writing])
async def add(
    state: Shared,
    file: UploadFile,
    item: Annotated[str, Form(description="What is said of it, as JSON: id, captions, labels, metadata.")] = "{}",
) -> Added:
    """Add a picture; under an id that is there, it takes the old one's place."""
    threads = state.encoding.beside  # an index has one writer: changes come one after the other
    try:
        about = NewItem.model_validate_json(item)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["item", *map(str, first["loc"])])
        raise ApiError(400, f"{place}: {first['msg'].removeprefix('Value error, ')}.") from None
    if state.model.image.encoder.takes == "features":
        raise ApiError(400, "This index's model reads precomputed features, not pictures.")
    said = (about.id, about.captions, about.labels, about.metadata)
    async with state.pictures:
        done = await threads.run(item_writes.add, state.index, await file.read(), *said, state.settings.limits.pixels)
    return Added(**done)


@router.delete("/items/{id:path}", response_model=Removed, dependencies=[Writing])
async def remove(state: Shared, id: Id, side: OfSide = None) -> Removed:  # noqa: A002
    """Remove an item, and the captions that came with it."""
    found = await item_of(state, id, side)
    return Removed(removed=await state.encoding.beside.run(item_writes.remove, state.index, found.id, side))


async def item_of(state: State, raw: str, side: Side | None) -> Item:
    """The item that an address names."""
    found = await state.workers.run(state.index.items, [key_of(raw)], side)
    if not found:
        raise ApiError(404, "The index holds no such item.")
    return found[0]
