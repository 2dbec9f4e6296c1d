"""Connections that say nothing, or say it a byte at a time, are hung up on; and there are only so many.

When there is no room for a new one, the one that has been silent for longest makes room; if all are being answered, the
new one is told to come back. So a crowd of silent connections keeps nobody out.

uvicorn gives an idle connection some seconds between two requests, but waits forever for the first one to arrive, and
for the rest of one that has begun.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from polysem.server.settings import Limits

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b'content-length: 80\r\n\r\n{"error": {"code": "overloaded", "message": "Too many connections. Try again."}}'
)


def guarded(limits: Limits) -> type[H11Protocol]:
    """A protocol class with these limits, as uvicorn wants one."""
    most = max(1, min(limits.connections, _files() - 128))
    silent: dict[Guarded, None] = {}  # the one that has been silent for longest first

    class Guarded(H11Protocol):
        _head: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            if len(self.connections) >= most and silent:
                next(iter(silent))._hang_up()
            elif len(self.connections) >= most:
                transport.write(_FULL)
                transport.close()
                self.transport = transport
                return
            super().connection_made(transport)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            if self.flow is not None:
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.flow is None:  # it was one too many
                return
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop_waiting()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.transport.is_closing():
                self._wait_for_head()

        def _wait_for_head(self) -> None:
            self._stop_waiting()
            silent[self] = None
            self._head = self.loop.call_later(limits.header_seconds, self._too_slow)

        def _stop_waiting(self) -> None:
            silent.pop(self, None)
            if self._head is not None:
                self._head.cancel()
                self._head = None

        def _too_slow(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self._hang_up()

        def _hang_up(self) -> None:
            self._stop_waiting()
            self.connections.discard(self)  # now, not when the loop comes round to it: its place is needed
            self.transport.abort()

    return Guarded


def _files() -> int:
    """How many files, and so connections, the process may have open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1 << 16
    soft: Any = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 16 if soft in (resource.RLIM_INFINITY, -1) else int(soft)
