"""The outermost layer: counts and times every request, and turns what nobody caught into a plain 500."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polysem.server.errors import ApiError, log
from polysem.server.metrics import Metrics

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observed:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ConnectionError as error:  # the client is gone, or was hung up on
            log.info("Not finished: %s", error)  # returning without an end makes uvicorn hang up
        except Exception:
            log.exception("An answer failed")
            if status:  # too late for another one
                raise
            await ApiError(500, "Something went wrong. The server's log says what.").send(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "none").replace(":path}", "}")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.answered(route, method, status, time.perf_counter() - start)
