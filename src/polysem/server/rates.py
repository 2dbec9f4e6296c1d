"""How often each client may ask: a bucket of tokens that fills up at a steady rate."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from polysem.server.errors import ApiError
from polysem.server.metrics import Metrics

CLIENTS = 10_000
"""That are remembered: the one not seen for longest is forgotten first."""
COSTS = {"/api/v1/uploads": 10.0, "/api/v1/explain": 5.0}
"""What takes the model and a picture counts for several requests, as does every change."""
_CHANGE = 5.0


class Rates:
    """rate: tokens a second. burst: how many fit into a bucket."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has(self, client: str, cost: float = 1.0) -> bool:
        return self._level(_network(client)) >= min(cost, self._burst)

    def take(self, client: str, cost: float = 1.0) -> float:
        """Take tokens, and 0; or, if there are too few, the seconds until there are enough."""
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
    """rate 0: no limit."""

    def __init__(self, app: ASGIApp, rate: float, burst_seconds: float, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics
        self._rates = Rates(rate, rate * burst_seconds) if rate else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._rates is not None and scope["path"] != "/healthz":
            changes = scope["method"] in ("PUT", "PATCH", "DELETE") or scope["path"] == "/api/v1/items"
            cost = _CHANGE if changes else COSTS.get(scope["path"], 1.0)
            wait = self._rates.take((scope.get("client") or ("",))[0], cost)
            if wait:
                self._metrics.refused["rate"] += 1
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
