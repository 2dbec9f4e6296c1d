"""Every request: counted, timed, HEAD answered as GET, ids in the path left encoded."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polysem.server.errors import ApiError, log
from polysem.server.metrics import Metrics
from polysem.server.routes.shared import BASE

_ITEMS = f"{BASE}/items/".encode()
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    """The outermost layer: counts and times every request, and turns an uncaught exception into a plain 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def count_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, count_status)
        except ConnectionError as error:  # the client has disconnected, or was disconnected
            log.info("Not finished: %s", error)  # returning without an end makes uvicorn close the connection
        except Exception:
            log.exception("An answer failed")
            if status:  # too late for another one
                raise
            await ApiError(500, "Something went wrong. The server's log says what.").send(scope, receive, count_status)
        finally:
            route = getattr(scope.get("route"), "path", "none").replace(":path}", "}")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.observe(route, method, status, time.perf_counter() - start)


class HeadAsGet:
    """Answers HEAD: routes see a GET, and uvicorn leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            seen = {**scope, "method": "GET"}
            await self._app(seen, receive, send)
            scope["route"] = seen.get("route")  # for the metrics
        else:
            await self._app(scope, receive, send)


class RawItemPaths:
    """Keeps item ids in the path percent-encoded until the route is found; `decode_id` decodes them afterwards.

    Otherwise `/items/a%2Fimage` would become the image of the item `a`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("raw_path", b"").startswith(_ITEMS):
            scope["path"] = scope["raw_path"].partition(b"?")[0].decode("latin-1")
        await self._app(scope, receive, send)
