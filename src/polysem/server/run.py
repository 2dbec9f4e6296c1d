"""Run the server: bind a socket, start uvicorn with our limits, stop on a signal."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from polysem.errors import InputError, PolysemError, no_index_message
from polysem.server.app import create_app
from polysem.server.connections import make_protocol
from polysem.server.errors import log
from polysem.server.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from polysem.models import Model

BACKLOG = 1024


class _Server(uvicorn.Server):
    """A server whose phase is "stopping" from the first signal on, and that exits without an exception."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        limits = settings.limits
        config = uvicorn.Config(
            app,
            http=make_protocol(limits),
            ws="none",
            lifespan="on",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anyone can write X-Forwarded-For
            backlog=BACKLOG,
            timeout_keep_alive=max(1, int(limits.header_seconds)),
            timeout_graceful_shutdown=limits.shutdown_seconds,
            h11_max_incomplete_event_size=32 * 1024,
        )
        super().__init__(config)
        self._polysem = app.state.polysem

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Neither loading nor a thread can be interrupted: exit at once while loading, and at the second SIGINT.
        loading, again = self._polysem.phase == "starting", sig == signal.SIGINT and self.should_exit
        if again:
            log.warning("Stopped at once: what was running is lost, the index is whole.")
        if loading or again:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._polysem.phase = "stopping"
        super().handle_exit(sig, frame)
        # uvicorn would raise the signal again at the end, and the exit code would be that of a crash.
        self._captured_signals.clear()


def serve(
    index: str | Path,
    settings: Settings | None = None,
    *,
    model: Model | str | Path | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Serve an index until SIGINT or SIGTERM; then finish what is running.

    Args:
        index: the folder of the index, or its Milvus address.
        settings: address, token and limits.
        model: the index's model, or where it is now.
        announce: called with the server's address as soon as it listens; the model loads meanwhile.

    Raises:
        InputError: where there is no index, or the address cannot be listened on.
    """
    settings = settings or Settings()
    check_index(index)

    def stop(_: Exception) -> None:
        server.should_exit = True

    app = create_app(index, settings, model=model, on_failure=stop)
    with bind_socket(settings) as listening:
        host, port = settings.host.strip("[]"), listening.getsockname()[1]
        if host in ("0.0.0.0", "::", ""):
            host = socket.gethostname()
        if announce is not None:
            announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        server = _Server(app, settings)
        server.run(sockets=[listening])
    failed = app.state.polysem.failed
    if isinstance(failed, PolysemError):
        raise failed
    if failed is not None:
        raise RuntimeError("The index or its model could not be loaded.") from failed


def bind_socket(settings: Settings) -> socket.socket:
    """A listening socket; an error that says what to do where there can be none."""
    host, passive = settings.host.strip("[]"), socket.AI_PASSIVE
    try:
        family, *_, address = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM, flags=passive)[0]
    except OSError as error:
        raise InputError(f"{settings.host} is not an address of this machine ({error.strerror or error}).") from None
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise InputError(
            f"Cannot listen on {settings.host}, port {settings.port}: {why}. Stop what uses it, or choose another "
            "port: --port 0 takes any free one."
        ) from None


def check_index(index: str | Path) -> None:
    """Refuse a path without an index before torch is loaded, which takes seconds."""
    files = (Path(index) / name for name in ("index.sqlite", "store.json"))
    if not str(index).startswith("milvus+") and not any(path.exists() for path in files):
        raise InputError(no_index_message(index))
