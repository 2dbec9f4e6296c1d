"""A cookie for the page, so that pictures, which carry no token, can be shown."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from polysem.server.auth import COOKIE, Gate, Given, client_of, unauthorised
from polysem.server.responses import ERRORS
from polysem.server.routes.shared import BASE

router = APIRouter(prefix=BASE, tags=["session"])


@router.post("/session", status_code=204, response_class=Response, responses=ERRORS)
async def session(request: Request, given: Given) -> Response:
    """Exchange the token for a cookie that suffices for reading. Writing still needs the token."""
    gate: Gate = request.app.state.gate
    if not gate.has_token(client_of(request), given) or gate.session is None:
        raise unauthorised()
    answer = Response(status_code=204)
    answer.set_cookie(
        COOKIE, gate.session, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return answer
