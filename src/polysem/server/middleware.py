"""ASGI middleware: metrics, bounds on requests, and what protects a browser.

The page has no inline script or style and asks no other host for anything, so nothing of the kind is allowed. DNS
rebinding makes a foreign page's own name point at this machine; its requests then carry that name as their Host. Pages
of other sites can send requests here too, but a browser says so in `Sec-Fetch-Site` or `Origin`. Programs send neither,
and are judged by the token alone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from cachetools import LRUCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polysem.server.errors import ApiError, OverloadError, log
from polysem.server.metrics import Metrics
from polysem.server.settings import BASE, Settings

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CLOSE = {"Connection": "close"}


class Middleware:
    """A layer around HTTP requests. An `ApiError` that `handle` raises is answered."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await (self.handle if scope["type"] == "http" else self.app)(scope, receive, send)
        except ApiError as error:
            await error.response()(scope, receive, send)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class _TrackedSend:
    """`send` that notes the status; it is 0 until the answer begins."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        await self._send(message)


class RequestMetrics(Middleware):
    """The outermost layer: counts and times every request, and turns an uncaught exception into a plain 500."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, tracked = time.perf_counter(), _TrackedSend(send)
        try:
            await self.app(scope, receive, tracked)
        except ConnectionError as error:  # the client has disconnected, or was disconnected
            log.info("Not finished: %s", error)  # returning without an end makes uvicorn close the connection
        except Exception:
            log.exception("An answer failed")
            if tracked.status:  # too late for another one
                raise
            await ApiError(500).response()(scope, receive, tracked)
        finally:
            route = getattr(scope.get("route"), "path", "none").replace(":path}", "}")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.observe(route, method, tracked.status, time.perf_counter() - start)


class RequestRewrite(Middleware):
    """Before routing: HEAD becomes GET, and item ids in the path stay percent-encoded.

    uvicorn leaves the body of an answer to HEAD out. `decode_id` decodes ids once the route is found: decoded before,
    `/items/a%2Fimage` would become the image of the item `a`.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        rewritten = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        if scope.get("raw_path", b"").startswith(f"{BASE}/items/".encode()):
            rewritten["path"] = scope["raw_path"].partition(b"?")[0].decode("latin-1")
        await self.app(rewritten, receive, send)
        scope["route"] = rewritten.get("route")  # for the metrics


# ------------------------------------------------------------------------------------------------------------ limits

CLIENTS = 10_000
"""Clients remembered; the one not seen for longest is dropped first."""
COSTS = {f"{BASE}/uploads": 10.0, f"{BASE}/explain": 5.0, f"{BASE}/items": 5.0}
"""Requests that need the model and a picture cost several tokens, as does every change."""
_PICTURE_ROUTES = frozenset({f"{BASE}/uploads", f"{BASE}/items"})


class TokenBuckets:
    """A token bucket for every client. rate: tokens a second. burst: tokens that fit into a bucket."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(CLIENTS)

    def has(self, client: str, cost: float = 1.0) -> bool:
        return self._level(_network(client)) >= min(cost, self._burst)

    def take(self, client: str, cost: float = 1.0) -> float:
        """Take tokens: 0, or the seconds until there are enough if there are too few."""
        key = _network(client)
        level, cost = self._level(key), min(cost, self._burst)
        if level < cost:
            return (cost - level) / self._rate
        self._buckets[key] = (level - cost, self._clock())
        return 0.0

    def _level(self, key: str) -> float:
        level, then = self._buckets.get(key, (self._burst, self._clock()))
        return min(self._burst, level + (self._clock() - then) * self._rate)


def _network(client: str) -> str:
    """An IPv6 client has a whole network of addresses to ask from."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    return client if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


class RateLimit(Middleware):
    """Answers 429 to a client that asks too often. A rate of 0 is no limit."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        super().__init__(app, settings, metrics)
        self._buckets = TokenBuckets(settings.rate, settings.rate * settings.limits.burst_seconds)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.settings.rate and scope["path"] != "/healthz":
            cost = 5.0 if scope["method"] in ("PUT", "PATCH", "DELETE") else COSTS.get(scope["path"], 1.0)
            wait = self._buckets.take((scope.get("client") or ("",))[0], cost)
            if wait:
                self.metrics.refused.labels("rate").inc()
                raise ApiError(429, "Too many requests. Slow down.", headers={"Retry-After": str(math.ceil(wait))})
        await self.app(scope, receive, send)


class ConcurrencyLimit(Middleware):
    """Answers 503 beyond so many requests at once.

    uvicorn's `limit_concurrency` counts open connections, idle ones included, and refuses /healthz as well.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/healthz":
            await self.app(scope, receive, send)
            return
        if self.metrics.in_flight >= self.settings.limits.requests:
            self.metrics.refused.labels("overload").inc()
            raise OverloadError
        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.metrics.in_flight -= 1


class Deadline(Middleware):
    """Ends a request that takes too long: to send its body, to be answered, or to read the answer."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        tracked, body_received = _TrackedSend(send), scope["method"] in ("GET", "HEAD")

        async def track_receive() -> Message:
            nonlocal body_received
            message = await receive()
            body_received = body_received or not message.get("more_body", False)
            return message

        try:
            async with asyncio.timeout(self.settings.limits.request_seconds):
                await self.app(scope, track_receive, tracked)
        except TimeoutError:
            self.metrics.refused.labels("timeout").inc()
            if tracked.status:  # the client reads too slowly: all that is left is to disconnect
                raise ConnectionAbortedError("The client did not read the answer in time.") from None
            if body_received:
                raise ApiError(504, "This took too long and was given up; a change may yet be made.") from None
            raise ApiError(408, "The body came in too slowly.", headers=_CLOSE) from None


class BodyLimit(Middleware):
    """Refuses bodies over a size, counted as they arrive, whatever Content-Length says."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits, takes_picture = self.settings.limits, scope["path"] in _PICTURE_ROUTES and scope["method"] == "POST"
        most, seen = limits.upload_bytes if takes_picture else limits.json_bytes, 0
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > most:
            raise ApiError(413, f"The body is larger than {most:,} bytes.", headers=_CLOSE)

        async def count_receive() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:  # FastAPI would take any other exception for a body that cannot be parsed
                raise HTTPException(413, headers=_CLOSE)
            return message

        await self.app(scope, count_receive, send)


# ----------------------------------------------------------------------------------------------------------- browsers

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; media-src 'self'; connect-src 'self'; font-src 'self'; "
    "img-src 'self' blob: data:; "  # blob: a picture that was just dropped on the page
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""Of everything but pages: opened by itself, a picture or a JSON text runs nothing."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


class SecurityHeaders(Middleware):
    """Adds the security headers to every answer."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_page = headers.get("content-type", "").startswith("text/html")
                headers.update({**_HEADERS, "Content-Security-Policy": PAGE_POLICY if is_page else DATA_POLICY})
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, add_headers)


class HostCheck(Middleware):
    """Refuses a Host that is not the server's own, and requests that pages of other sites send.

    Starlette's TrustedHostMiddleware does not serve for the Host: it cuts IPv6 addresses at their first colon, takes
    the first of several Host headers, and has no rule for addresses as opposed to names.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        hosts, origin = headers.getlist("host"), headers.get("origin")
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            raise ApiError(
                400, "This Host is not a name of the server. Use its address, or start it with --allow-host NAME."
            )
        # A link from elsewhere may open the page. Another port of the same machine is "same-site", and somebody else.
        if scope["path"].startswith("/api/") or scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            foreign = origin is not None and origin.partition("://")[2].lower() != hosts[0].lower()
            if foreign or headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                raise ApiError(403, "Other sites may not use this server.")
        await self.app(scope, receive, send)

    def _is_own(self, host: str) -> bool:
        try:
            name = "" if "@" in host else urlsplit(f"//{host}").hostname or ""
            if name in self.settings.allowed_names:
                return True
            return ipaddress.ip_address(name).is_loopback or not self.settings.is_loopback
        except ValueError:
            return False
