"""The web page, its files, the API reference page, and the session cookie of the page."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from polysem.server.auth import COOKIE, Credentials, TokenAuth, client_address, unauthorised
from polysem.server.errors import ApiError
from polysem.server.routes.schemas import ERRORS
from polysem.server.routes.shared import BASE

_HERE = Path(__file__).parents[1]
PAGE, REFERENCE = _HERE / "page", _HERE / "reference"


router = APIRouter(prefix=BASE, tags=["session"])


class _Files(StaticFiles):
    """Static files that a browser caches and revalidates each time: an upgrade is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


def install(app: FastAPI) -> None:
    """Add the page, the API reference and their static files."""

    async def page(_: Request) -> Response:
        if not (PAGE / "index.html").is_file():
            raise ApiError(404, "This installation has no page. The API is described at /docs.")
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    async def reference(_: Request) -> Response:
        return FileResponse(REFERENCE / "index.html", headers={"Cache-Control": "no-cache"})

    async def icon(_: Request) -> Response:
        return FileResponse(PAGE / "icon.svg") if (PAGE / "icon.svg").is_file() else Response(status_code=404)

    app.add_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_route("/docs", reference, methods=["GET"], include_in_schema=False)
    app.add_route("/favicon.ico", icon, methods=["GET"], include_in_schema=False)
    for where, folder in (("/static", PAGE), ("/docs/static", REFERENCE)):
        app.mount(where, _Files(directory=folder, check_dir=False), name=where.strip("/"))


@router.post("/session", status_code=204, response_class=Response, responses=ERRORS)
async def session(request: Request, given: Credentials) -> Response:
    """Exchange the token for a cookie that suffices for reading. Writing still needs the token."""
    auth: TokenAuth = request.app.state.auth
    if not auth.has_token(client_address(request), given) or auth.session is None:
        raise unauthorised()
    answer = Response(status_code=204)
    answer.set_cookie(
        COOKIE, auth.session, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return answer
