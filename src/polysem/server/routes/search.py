"""Searching: by words, by an item, by an uploaded picture."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError

from polysem.server.auth import Guarded, JsonBody, Reading
from polysem.server.errors import ApiError
from polysem.server.requests import FilterText, Key, Mode, SearchRequest, Side, Text
from polysem.server.responses import ERRORS, CutInfo, Found, Milliseconds, SearchAnswer, moment_info
from polysem.server.routes.shared import BASE, Shared, image_address, video_address
from polysem.server.searching import Answer, found
from polysem.server.searching import Query as Asked
from polysem.server.state import State

router = APIRouter(prefix=BASE, route_class=Guarded, tags=["search"], dependencies=[Reading], responses=ERRORS)
_NAMES = (SearchRequest.model_fields.keys() - {"text"}) | {"q"}


@router.post("/search", response_model=SearchAnswer, dependencies=[JsonBody])
async def search(state: Shared, asked: SearchRequest) -> SearchAnswer:
    """The best items for words, an item or an uploaded picture."""
    return await _answer(state, asked)


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
    unknown = set(request.query_params) - _NAMES
    if unknown:  # left out in silence, a filter that is called "where" would let everything pass
        raise ApiError(400, f"There is no {min(unknown)[:50]!r} here. Known are {', '.join(sorted(_NAMES))}.")
    given: dict[str, Any] = {
        **{"text": q, "item": item, "side": side, "image": image, "find": find, "k": k, "offset": offset},
        **{"filter": filter, "mode": mode, "relevant": relevant, "dedupe": dedupe},
    }
    try:
        asked = SearchRequest(**given)
    except ValidationError as error:
        said = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ApiError(400, f"{said[:1].upper()}{said[1:]}; `q` is the text.") from None
    return await _answer(state, asked)


async def _answer(state: State, asked: SearchRequest) -> SearchAnswer:
    index, start = state.index, time.perf_counter()
    vectors = None
    if asked.text is not None:
        vectors = await state.encoding.text(asked.text)
    elif asked.image is not None:
        vectors = state.uploads.get(asked.image).embedding
    encoded = time.perf_counter()
    query = Asked(
        vectors, asked.item, asked.side, asked.find, asked.k, asked.offset, asked.filter, asked.mode,
        asked.relevant, asked.dedupe,
    )  # fmt: skip
    answer: Answer = await state.workers.run(found, index, query)
    spent = Milliseconds(encode=1e3 * (encoded - start), search=1e3 * (time.perf_counter() - encoded))
    results = [
        Found(
            rank=each.rank,
            id=each.id,
            side=each.side,
            score=each.score,
            caption=each.caption,
            labels=list(each.labels),
            metadata=dict(each.metadata),
            relevant=each.relevant,
            duplicates=list(each.duplicates),
            image=image_address(each.id, each.side, each.path),
            video=video_address(each.id, each.side, each.path),
            moment=moment_info(each.moment),
        )
        for each in answer.items
    ]
    cut = answer.cut
    return SearchAnswer(
        results=results,
        cut=None
        if cut is None
        else CutInfo(
            count=cut.count,
            threshold=cut.threshold,
            reliable=cut.reliable,
            complete=cut.complete,
            doubtful=cut.doubtful,
            explained=cut.explained(),
        ),
        mode=answer.mode,
        scored=answer.scored,
        of=answer.of,
        unreadable=answer.unreadable,
        milliseconds=spent,
        query=asked,
    )
