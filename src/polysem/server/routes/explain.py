"""Why an item was found."""

from __future__ import annotations

from fastapi import APIRouter

from polysem.server.auth import Guarded, JsonBody, Reading
from polysem.server.errors import ApiError
from polysem.server.explaining import explained
from polysem.server.requests import ExplainRequest
from polysem.server.responses import ERRORS, ExplainAnswer
from polysem.server.routes.shared import BASE, Shared

router = APIRouter(
    prefix=BASE, route_class=Guarded, tags=["inspection"], dependencies=[Reading, JsonBody], responses=ERRORS
)


@router.post("/explain", response_model=ExplainAnswer)
async def explain(state: Shared, asked: ExplainRequest) -> ExplainAnswer:
    """The elements of an image, where each looks, and what each contributes to its score with a text."""
    index, threads = state.index, state.encoding.beside
    items = await state.workers.run(index.items, [asked.item], "image")
    if not items:
        raise ApiError(404, "The index holds no such image.")
    text = asked.text
    if asked.with_ is not None:
        said = await state.workers.run(index.items, [asked.with_], "text")
        text = said[0].caption if said else None
        if not text:
            raise ApiError(404, "The index holds no such text.")
    found = await threads.run(explained, index, items[0], text, state.settings.limits.pixels)
    return ExplainAnswer(**found)
