"""GET and POST /search, POST /uploads: the best items for words, an item or an uploaded picture."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response, UploadFile

from polysem.errors import InputError
from polysem.server.auth import AuthenticatedRoute, JsonBody, Reading
from polysem.server.errors import ApiError
from polysem.server.media import SIZES, decode_upload, encode_thumbnail, make_urls
from polysem.server.routes import schemas
from polysem.server.routes.schemas import SearchAnswer, SearchQuery, SearchRequest
from polysem.server.settings import BASE
from polysem.server.state import ServerState, State, Upload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from polysem.search import Index, SearchResults

router = APIRouter(
    prefix=BASE, route_class=AuthenticatedRoute, tags=["search"], dependencies=[Reading], responses=schemas.ERRORS
)
_PARAMETERS = (SearchRequest.model_fields.keys() - {"text"}) | {"q"}


@router.post("/search", response_model=SearchAnswer, dependencies=[JsonBody])
async def search(state: ServerState, body: SearchRequest) -> SearchAnswer:
    """The best items for words, an item or an uploaded picture."""
    return await _answer(state, body)


@router.get("/search", response_model=SearchAnswer)
async def search_by_url(state: ServerState, request: Request, query: Annotated[SearchQuery, Query()]) -> SearchAnswer:
    """The best items, asked for by a URL: for curl and for links."""
    unknown = set(request.query_params) - _PARAMETERS
    if unknown:  # ignored, a filter that is called "where" would let everything pass
        names = ", ".join(sorted(_PARAMETERS))
        raise ApiError(400, f"There is no parameter {min(unknown)[:50]!r}. Known are {names}.")
    return await _answer(state, query)


async def _answer(state: State, request: SearchRequest) -> SearchAnswer:
    start = time.perf_counter()
    vectors = None
    if request.text is not None:
        vectors = await state.encoding.encode_text(request.text)
    elif request.image is not None:
        vectors = _find_upload(state, request.image).embedding
    encoded = time.perf_counter()
    results = await state.workers.run(run_search, state.index, request, vectors)
    spent = schemas.Milliseconds(encode=1e3 * (encoded - start), search=1e3 * (time.perf_counter() - encoded))
    hits, cut = results.items[request.offset :], results.cut
    return SearchAnswer(
        results=[schemas.SearchHit.model_validate({**vars(hit), **make_urls(hit)}) for hit in hits],
        cut=None if cut is None else schemas.CutInfo(**asdict(cut), doubtful=cut.doubtful, explained=cut.explain()),
        mode=results.mode,
        scored=results.scored,
        of=results.of,
        unreadable=results.unreadable,
        milliseconds=spent,
        query=request,
    )


def run_search(index: Index, request: SearchRequest, vectors: NDArray[np.float32] | None) -> SearchResults:
    """Search the index, on a worker's thread: the results up to `offset + k`.

    Args:
        request: what to search for, and how.
        vectors: the set of the query; None for a search from an item.
    """
    if request.find not in index.manifest.sets:
        raise ApiError(400, f"This index holds no {request.find}s.")
    options: dict[str, Any] = {
        "find": request.find,
        "k": request.offset + request.k,
        "where": request.filter,
        "mode": request.mode,
        "relevant": "mark" if request.relevant else False,
        "dedupe": request.dedupe,
    }
    if request.item is None:
        return index.search(vectors=vectors, vectors_side="image" if request.text is None else "text", **options)
    items = index.items([request.item], request.side)
    if not items:
        raise ApiError(404, "The index holds no such item.")
    side = items[0].side
    try:
        index.vectors(side, [request.item])
    except InputError:
        raise ApiError(409, "The file that holds this item's vectors is damaged.") from None
    return index.search(item=request.item, item_side=side, **options)


@router.post("/uploads", response_model=schemas.UploadAnswer)
async def upload(state: ServerState, file: UploadFile) -> schemas.UploadAnswer:
    """A picture to search with. Its embedding and a thumbnail are kept for an hour, the picture is not."""
    encoding = state.encoding
    async with state.decoding.admit():
        image = await state.workers.run(decode_upload, await file.read(), state.settings.limits.pixels)
        small = await state.workers.run(encode_thumbnail, image, SIZES[1])
        embedding = await encoding.encode_image(image)
    token = secrets.token_urlsafe(18)
    state.uploads[token] = Upload(embedding, small)
    return schemas.UploadAnswer(image=token, expires=state.settings.limits.upload_seconds)


@router.get(
    "/uploads/{token}/thumbnail", response_class=Response, responses=schemas.describe_binary("image/jpeg", "A JPEG.")
)
async def upload_thumbnail(state: ServerState, token: str) -> Response:
    """The uploaded picture, small."""
    thumbnail = _find_upload(state, token).thumbnail
    return Response(thumbnail, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


def _find_upload(state: State, token: str) -> Upload:
    upload = state.uploads.get(token)
    if upload is None:
        raise ApiError(404, "This upload is unknown or has expired. Send the picture again.")
    return upload
