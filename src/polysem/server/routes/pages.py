"""The page, its files, and a page that shows the OpenAPI document. All of it from here: nothing is asked of others."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from polysem.server.errors import ApiError

_HERE = Path(__file__).parents[1]
PAGE, REFERENCE = _HERE / "page", _HERE / "reference"


class _Files(StaticFiles):
    """A browser may keep them, and asks each time whether they have changed: an upgrade is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


def install(app: FastAPI) -> None:
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
