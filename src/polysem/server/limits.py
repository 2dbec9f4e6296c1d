"""Bounds on what one request may send, how long it may take, and how many there are at once."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polysem.server.errors import ApiError, overloaded
from polysem.server.metrics import Metrics
from polysem.server.settings import Limits

_LARGE = frozenset({"/api/v1/uploads", "/api/v1/items"})
"""Where pictures are sent to."""


class _TooLargeError(HTTPException):
    """More body than is allowed. An HTTPException, because FastAPI calls any other a body that cannot be parsed."""

    def __init__(self) -> None:
        super().__init__(413, headers={"Connection": "close"})


class InFlight:
    """So many requests at once, and no more: the next is told so at once instead of waiting for all the others."""

    def __init__(self, app: ASGIApp, most: int, metrics: Metrics) -> None:
        self._app, self._most, self._metrics = app, most, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/healthz":
            await self._app(scope, receive, send)
            return
        if self._metrics.under_way >= self._most:
            self._metrics.refused["overload"] += 1
            await overloaded().send(scope, receive, send)
            return
        self._metrics.under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._metrics.under_way -= 1


class Deadline:
    """A request has so many seconds, for its body to come in, for the work, and for its answer to be taken."""

    def __init__(self, app: ASGIApp, seconds: float, metrics: Metrics) -> None:
        self._app, self._seconds, self._metrics = app, seconds, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = whole = False

        async def received() -> Message:
            nonlocal whole
            message = await receive()
            whole = whole or not message.get("more_body", False)
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(self._seconds):
                await self._app(scope, received, watched)
        except TimeoutError:
            self._metrics.refused["timeout"] += 1
            if started:  # the client reads too slowly: all that is left is to hang up
                raise ConnectionAbortedError("An answer was not taken in time.") from None
            if whole or scope["method"] in ("GET", "HEAD"):
                error = ApiError(504, "This took too long and was given up; a change may yet be made.")
            else:
                error = ApiError(408, "The body came in too slowly.", headers={"Connection": "close"})
            await error.send(scope, receive, send)


class BodyLimit:
    """Bodies up to a size: counted as they come, whatever their length was said to be."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        large = scope["path"] in _LARGE and scope["method"] == "POST"
        most = self._limits.upload_bytes if large else self._limits.json_bytes
        refusal = ApiError(413, f"The body is larger than {most:,} bytes.", headers={"Connection": "close"})
        announced = Headers(scope=scope).get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > most:
            await refusal.send(scope, receive, send)
            return
        seen, started = 0, False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise _TooLargeError
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, counted, watched)
        except _TooLargeError:
            if started:
                raise
            await refusal.send(scope, receive, send)
