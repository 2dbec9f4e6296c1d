"""Pictures to search with."""

from __future__ import annotations

from fastapi import APIRouter, Response, UploadFile

from polysem.server.auth import Guarded, Reading
from polysem.server.images import decoded, thumbnail
from polysem.server.responses import ERRORS, UploadAnswer, of_kind
from polysem.server.routes.shared import BASE, Shared
from polysem.server.uploads import THUMBNAIL, Upload

router = APIRouter(prefix=BASE, route_class=Guarded, tags=["search"], dependencies=[Reading], responses=ERRORS)


@router.post("/uploads", response_model=UploadAnswer)
async def upload(state: Shared, file: UploadFile) -> UploadAnswer:
    """A picture to search with. Its embedding and a thumbnail are kept for an hour, the picture is not."""
    encoding = state.encoding
    async with state.pictures:
        image = await state.workers.run(decoded, await file.read(), state.settings.limits.pixels)
        small = await state.workers.run(thumbnail, image, THUMBNAIL)
        embedding = await encoding.image(image)
    return UploadAnswer(image=state.uploads.put(Upload(embedding, small)), expires=state.uploads.seconds)


@router.get(
    "/uploads/{token}/thumbnail",
    response_class=Response,
    responses=of_kind("image/jpeg", "A JPEG."),
)
async def upload_thumbnail(state: Shared, token: str) -> Response:
    """The uploaded picture, small."""
    kept = state.uploads.get(token)
    return Response(kept.thumbnail, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})
