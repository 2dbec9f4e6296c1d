"""Health and metrics, the web page and the API reference with their files, and the session cookie of the page."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from polysem.server.auth import COOKIE, Credentials, Reading, TokenAuth, UnauthorisedError
from polysem.server.errors import ApiError
from polysem.server.routes.schemas import ERRORS, HealthAnswer, describe_binary
from polysem.server.settings import BASE
from polysem.server.state import ServerState

_HERE = Path(__file__).parents[1]
PAGE, REFERENCE = _HERE / "page", _HERE / "reference"
_HEALTH_ERRORS: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (400, 403, 408, 413, 500, 504)}
_NO_CACHE = {"Cache-Control": "no-cache"}
router = APIRouter()


@router.get(
    "/healthz",
    tags=["health"],
    response_model=HealthAnswer,
    responses={**_HEALTH_ERRORS, 503: {"model": HealthAnswer, "description": "Not ready."}},
)
async def health(state: ServerState, response: Response) -> HealthAnswer:
    """Whether the model is loaded: 200 when ready, 503 before and after."""
    response.status_code = 200 if state.phase == "ready" else 503
    return HealthAnswer(status=state.phase)


@router.get(
    "/metrics",
    tags=["health"],
    dependencies=[Reading],
    response_class=Response,
    responses={**ERRORS, **describe_binary("text/plain", "Prometheus text.")},
)
async def metrics(state: ServerState) -> Response:
    """Counters and times for Prometheus."""
    return Response(state.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.post(f"{BASE}/session", tags=["session"], status_code=204, response_class=Response, responses=ERRORS)
async def session(request: Request, given: Credentials) -> Response:
    """Exchange the token for a cookie that suffices for reading. Writing still needs the token."""
    auth: TokenAuth = request.app.state.auth
    if not auth.has_token(request, given) or auth.session is None:
        raise UnauthorisedError
    answer, secure = Response(status_code=204), request.url.scheme == "https"
    answer.set_cookie(COOKIE, auth.session, path="/", httponly=True, samesite="strict", secure=secure)
    return answer


class _Files(StaticFiles):
    """Static files that a browser caches and revalidates each time: an upgrade is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update(_NO_CACHE)
        return answer


async def _send_file(path: Path, _: Request) -> Response:
    if not path.is_file():
        raise ApiError(404, "This installation has no page. The API is described at /docs.")
    return FileResponse(path, headers=_NO_CACHE)


def install(app: FastAPI) -> None:
    """Add the page, the API reference and their static files."""
    files = {"/": PAGE / "index.html", "/docs": REFERENCE / "index.html", "/favicon.ico": PAGE / "icon.svg"}
    for url, path in files.items():
        app.add_route(url, partial(_send_file, path), methods=["GET"], include_in_schema=False)
    for url, folder in (("/static", PAGE), ("/docs/static", REFERENCE)):
        app.mount(url, _Files(directory=folder, check_dir=False), name=url.strip("/"))
