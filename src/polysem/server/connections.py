"""A uvicorn protocol that closes idle and slow connections and bounds their number.

When there are too many, the connection that has been idle for longest is closed to make room; if all are being
answered, the new one gets a 503. So a crowd of idle connections keeps nobody out. A client that does not read its
answers is disconnected after `request_seconds`.

Why uvicorn's own limits do not serve: it waits forever for the first request of a connection, for the rest of a
request that has begun and for a client to read, even when it closes the connection; and its `limit_concurrency` counts
idle connections. With `limit_concurrency=1024` and 1,024 idle connections every request of everybody is answered 503;
with this protocol 10,000 of them delay `/healthz` by 0.41 s (`benchmarks/serve.py`). A reverse proxy in front does the
same and is the better place off loopback.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from uvicorn.protocols.http.h11_impl import H11Protocol

from polysem.server.settings import Limits

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b'content-length: 80\r\n\r\n{"error": {"code": "overloaded", "message": "Too many connections. Try again."}}'
)


def make_protocol(limits: Limits) -> type[H11Protocol]:
    """A protocol class with these limits, as uvicorn wants one."""
    most = limits.connections
    with suppress(ImportError):  # Windows has no limit on open files
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = most if files < 0 else max(1, min(most, files - 128))
    idle: dict[LimitedProtocol, None] = {}  # the longest idle first

    class LimitedProtocol(H11Protocol):
        _head: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            if len(self.connections) >= most and idle:
                next(iter(idle))._disconnect()
            elif len(self.connections) >= most:
                transport.write(_FULL)
                transport.close()
                self.transport = transport
                return
            super().connection_made(transport)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            if self._unread is not None:
                self._unread.cancel()
            if self.flow is not None:
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.flow is None:  # refused in connection_made
                return
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop_waiting()

        def on_response_complete(self) -> None:
            before = self.cycle
            super().on_response_complete()  # begins the next of several requests that came together
            if self.cycle is before and not self.transport.is_closing():
                self._wait_for_head()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(limits.request_seconds, self._disconnect)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()

        def _wait_for_head(self) -> None:
            self._stop_waiting()
            idle[self] = None
            self._head = self.loop.call_later(limits.header_seconds, self._disconnect)

        def _stop_waiting(self) -> None:
            idle.pop(self, None)
            if self._head is not None:
                self._head.cancel()
                self._head = None

        def _disconnect(self) -> None:
            self._stop_waiting()
            self.connections.discard(self)  # now, not when the loop comes round to it: its place is needed
            self.transport.abort()

    return LimitedProtocol
