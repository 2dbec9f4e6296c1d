"""Bounds on requests: how often, how many at once, how large, how long."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polysem.server.errors import ApiError, overloaded
from polysem.server.metrics import Metrics
from polysem.server.settings import Limits

CLIENTS = 10_000
"""Clients remembered; the one not seen for longest is dropped first."""
COSTS = {"/api/v1/uploads": 10.0, "/api/v1/explain": 5.0}
"""Requests that need the model and a picture cost several tokens, as does every change."""
_CHANGE = 5.0


class TokenBuckets:
    """A token bucket for every client.

    Args:
        rate: tokens a second.
        burst: tokens that fit into a bucket.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has(self, client: str, cost: float = 1.0) -> bool:
        return self._level(_network(client)) >= min(cost, self._burst)

    def take(self, client: str, cost: float = 1.0) -> float:
        """Take tokens.

        Returns:
            0, or the seconds until there are enough tokens if there are too few.
        """
        key = _network(client)
        level, cost = self._level(key), min(cost, self._burst)
        if level < cost:
            return (cost - level) / self._rate
        self._buckets[key] = (level - cost, self._clock())
        self._buckets.move_to_end(key)
        while len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0

    def _level(self, key: str) -> float:
        level, then = self._buckets.get(key, (self._burst, self._clock()))
        return min(self._burst, level + (self._clock() - then) * self._rate)


class RateLimit:
    """Answers 429 to a client that asks too often. A rate of 0 is no limit."""

    def __init__(self, app: ASGIApp, rate: float, burst_seconds: float, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._buckets_by_client = TokenBuckets(rate, rate * burst_seconds) if rate else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._buckets_by_client is not None and scope["path"] != "/healthz":
            changes = scope["method"] in ("PUT", "PATCH", "DELETE") or scope["path"] == "/api/v1/items"
            cost = _CHANGE if changes else COSTS.get(scope["path"], 1.0)
            wait = self._buckets_by_client.take((scope.get("client") or ("",))[0], cost)
            if wait:
                self._metrics.refused.labels("rate").inc()
                seconds = str(math.ceil(wait))
                error = ApiError(429, "Too many requests. Slow down a little.", headers={"Retry-After": seconds})
                await error.send(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _network(client: str) -> str:
    """An IPv6 client has a whole network of addresses to ask from."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return client


_LARGE = frozenset({"/api/v1/uploads", "/api/v1/items"})
"""Routes that take pictures."""


class _TooLargeError(HTTPException):
    """More body than is allowed. An HTTPException, because FastAPI calls any other a body that cannot be parsed."""

    def __init__(self) -> None:
        super().__init__(413, headers={"Connection": "close"})


class ConcurrencyLimit:
    """Answers 503 beyond so many requests at once.

    uvicorn's `limit_concurrency` counts open connections, idle ones included, and refuses /healthz as well.
    """

    def __init__(self, app: ASGIApp, most: int, metrics: Metrics) -> None:
        self._app, self._most, self._metrics = app, most, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/healthz":
            await self._app(scope, receive, send)
            return
        if self._metrics.in_flight >= self._most:
            self._metrics.refused.labels("overload").inc()
            await overloaded().send(scope, receive, send)
            return
        self._metrics.in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._metrics.in_flight -= 1


class Deadline:
    """Ends a request that takes too long: to send its body, to be answered, or to read the answer."""

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
            self._metrics.refused.labels("timeout").inc()
            if started:  # the client reads too slowly: all that is left is to disconnect
                raise ConnectionAbortedError("An answer was not taken in time.") from None
            if whole or scope["method"] in ("GET", "HEAD"):
                error = ApiError(504, "This took too long and was given up; a change may yet be made.")
            else:
                error = ApiError(408, "The body came in too slowly.", headers={"Connection": "close"})
            await error.send(scope, receive, send)


class BodyLimit:
    """Refuses bodies over a size, counted as they arrive, whatever Content-Length says."""

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
