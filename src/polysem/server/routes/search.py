"""GET and POST /search, POST /uploads: the best items for words, an item or an uploaded picture."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response, UploadFile
from pydantic import ValidationError

from polysem.server.auth import AuthenticatedRoute, JsonBody, Reading
from polysem.server.encoding import Upload
from polysem.server.errors import ApiError
from polysem.server.media import decode_upload, encode_thumbnail
from polysem.server.routes.schemas import (
    ERRORS,
    CutInfo,
    FilterText,
    Key,
    Milliseconds,
    Mode,
    SearchAnswer,
    SearchHit,
    SearchRequest,
    Side,
    Text,
    UploadAnswer,
    binary_response,
    moment_info,
)
from polysem.server.routes.shared import BASE, Shared, image_address, video_address
from polysem.server.state import State

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from polysem.search import Index, SearchResult, SearchResults

router = APIRouter(
    prefix=BASE, route_class=AuthenticatedRoute, tags=["search"], dependencies=[Reading], responses=ERRORS
)
_PARAMETERS = (SearchRequest.model_fields.keys() - {"text"}) | {"q"}
_UPLOAD_THUMBNAIL = 320


@router.post("/search", response_model=SearchAnswer, dependencies=[JsonBody])
async def search(state: Shared, body: SearchRequest) -> SearchAnswer:
    """The best items for words, an item or an uploaded picture."""
    return await _answer(state, body)


@router.get("/search", response_model=SearchAnswer)
async def search_by_address(
    state: Shared,
    request: Request,
    q: Annotated[Text | None, Query(description="Search for what these words say.")] = None,
    item: Annotated[Key | None, Query(description="Search for what is like this item.")] = None,
    side: Annotated[Side | None, Query()] = None,
    image: Annotated[Key | None, Query(description="A token from `uploads`.")] = None,
    find: Annotated[Side, Query()] = "image",
    k: Annotated[int, Query(ge=1, le=200)] = 24,
    offset: Annotated[int, Query(ge=0, lt=1000)] = 0,
    filter: Annotated[FilterText | None, Query()] = None,  # noqa: A002
    mode: Annotated[Mode | None, Query()] = None,
    relevant: Annotated[bool, Query()] = False,
    dedupe: Annotated[bool, Query()] = False,
) -> SearchAnswer:
    """The best items, asked for by an address: for curl and for links."""
    unknown = set(request.query_params) - _PARAMETERS
    if unknown:  # ignored, a filter that is called "where" would let everything pass
        names = ", ".join(sorted(_PARAMETERS))
        raise ApiError(400, f"There is no parameter {min(unknown)[:50]!r}. Known are {names}.")
    fields: dict[str, Any] = {
        **{"text": q, "item": item, "side": side, "image": image, "find": find, "k": k, "offset": offset},
        **{"filter": filter, "mode": mode, "relevant": relevant, "dedupe": dedupe},
    }
    try:
        body = SearchRequest(**fields)
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ApiError(400, f"{message[:1].upper()}{message[1:]}; `q` is the text.") from None
    return await _answer(state, body)


async def _answer(state: State, request: SearchRequest) -> SearchAnswer:
    start = time.perf_counter()
    vectors = None
    if request.text is not None:
        vectors = await state.encoding.text(request.text)
    elif request.image is not None:
        vectors = state.uploads.get(request.image).embedding
    encoded = time.perf_counter()
    results = await state.workers.run(run_search, state.index, request, vectors)
    spent = Milliseconds(encode=1e3 * (encoded - start), search=1e3 * (time.perf_counter() - encoded))
    cut = results.cut
    return SearchAnswer(
        results=[_hit(result) for result in results.items[request.offset :]],
        cut=None if cut is None else CutInfo(**asdict(cut), doubtful=cut.doubtful, explained=cut.explain()),
        mode=results.mode,
        scored=results.scored,
        of=results.of,
        unreadable=results.unreadable,
        milliseconds=spent,
        query=request,
    )


def run_search(index: Index, request: SearchRequest, vectors: NDArray[np.float32] | None) -> SearchResults:
    """Search the index, on a worker's thread.

    Args:
        request: what to search for, and how.
        vectors: the set of the query; None for a search from an item.

    Returns:
        The results up to `offset + k`.
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
        return index.search(vectors=vectors, **options)
    return _search_from_item(index, request.item, request.side, options)


def _search_from_item(index: Index, key: str, side: Side | None, options: dict[str, Any]) -> SearchResults:
    """What is like an item, without the item itself."""
    items = index.items([key], side)
    if not items:
        raise ApiError(404, "The index holds no such item.")
    if items[0].position < 0:
        raise ApiError(409, "The file that holds this item's vectors is damaged.")
    if len(index.items([key])) == 1:
        return index.search(item=key, **options)
    # The same id on both sides: `item=` would take the image.
    side = items[0].side
    results = index.search(vectors=index.vectors(side, [key])[0], **{**options, "k": options["k"] + 1})
    others = [result for result in results if (result.side, result.id) != (side, key)][: options["k"]]
    ranked = [replace(result, rank=rank) for rank, result in enumerate(others, start=1)]
    return replace(results, items=ranked, of=results.of - int(options["find"] == side))


def _hit(result: SearchResult) -> SearchHit:
    return SearchHit(
        rank=result.rank,
        id=result.id,
        side=result.side,
        score=result.score,
        caption=result.caption,
        labels=list(result.labels),
        metadata=dict(result.metadata),
        relevant=result.relevant,
        duplicates=list(result.duplicates),
        image=image_address(result.id, result.side, result.path),
        video=video_address(result.id, result.side, result.path),
        moment=moment_info(result.moment),
    )


@router.post("/uploads", response_model=UploadAnswer)
async def upload(state: Shared, file: UploadFile) -> UploadAnswer:
    """A picture to search with. Its embedding and a thumbnail are kept for an hour, the picture is not."""
    encoding = state.encoding
    async with state.decoding:
        image = await state.workers.run(decode_upload, await file.read(), state.settings.limits.pixels)
        small = await state.workers.run(encode_thumbnail, image, _UPLOAD_THUMBNAIL)
        embedding = await encoding.image(image)
    return UploadAnswer(image=state.uploads.put(Upload(embedding, small)), expires=state.uploads.seconds)


@router.get(
    "/uploads/{token}/thumbnail",
    response_class=Response,
    responses=binary_response("image/jpeg", "A JPEG."),
)
async def upload_thumbnail(state: Shared, token: str) -> Response:
    """The uploaded picture, small."""
    kept = state.uploads.get(token)
    return Response(kept.thumbnail, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})
