"""The videos of items, in parts as players ask for them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from polysem.server import videos
from polysem.server.auth import Guarded, Reading
from polysem.server.responses import ERRORS, Error
from polysem.server.routes.items import Id, OfSide, item_of
from polysem.server.routes.shared import BASE, Shared

router = APIRouter(prefix=BASE, route_class=Guarded, tags=["items"], responses=ERRORS)
_CONTENT: dict[str, Any] = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in videos.KINDS}


@router.get(
    "/items/{id:path}/video",
    dependencies=[Reading],
    response_class=Response,
    responses={
        200: {"description": "The whole video.", "content": _CONTENT},
        206: {"description": "A part of it: as much as was asked for, or the beginning of that.", "content": _CONTENT},
        304: {"description": "The same as before."},
        416: {"model": Error, "description": "The range begins behind the end."},
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
    found = await item_of(state, id, side)
    headers = {"Accept-Ranges": "bytes", "Cache-Control": "private, max-age=300"}
    if range is not None:
        given = await state.workers.run(videos.part_of, found.path, range, if_range)
        if given is not None:
            part, tag, data, kind = given
            own = {"Content-Range": part.described, "ETag": tag}
            return Response(data, 206, media_type=kind, headers={**headers, **own})
    whole = await state.workers.run(videos.whole, found.path)
    headers |= {"ETag": whole.tag, "Content-Length": str(whole.size)}
    if if_none_match == whole.tag and range is None:
        whole.file.close()
        return Response(status_code=304, headers={name: headers[name] for name in ("ETag", "Cache-Control")})
    return StreamingResponse(iter(whole), media_type=whole.kind, headers=headers)
