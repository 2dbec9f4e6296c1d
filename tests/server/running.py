"""A small index behind the real application: called directly, or over real sockets."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from PIL import Image

from polysem.models import Model
from polysem.search import Index
from polysem.server import Limits, Settings, create_app
from polysem.server.run import _Server, bind_socket
from waiting import LONG, finish, wait_until

TOKEN = "a-token-that-nobody-guesses"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HOST = "http://127.0.0.1:8000"


def make_index(place: Path, model: Model, photos: Path) -> Path:
    with Index.create(place, model) as index:
        index.add(photos)
    return place


@contextmanager
def client(
    place: Path, model: Model | None, settings: Settings | None = None, wait: bool = True
) -> Iterator[TestClient]:
    """The application without a socket. wait: until the model is loaded."""
    app = create_app(place, settings or Settings(limits=Limits(rate=0)), model=model)
    with TestClient(app, base_url=HOST, raise_server_exceptions=False) as made:
        if wait:
            wait_until(lambda: made.get("/healthz").status_code == 200)
        yield made


@contextmanager
def server(place: Path, model: Model | None, settings: Settings | None = None) -> Iterator[tuple[_Server, int]]:
    """The application behind uvicorn on a free port, on a thread."""
    settings = settings or Settings(port=0, limits=Limits(rate=0))
    app = create_app(place, settings, model=model)
    listening = bind_socket(settings)
    port = listening.getsockname()[1]
    running = _Server(app, settings)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        wait_until(lambda: answer(port, "GET /healthz").startswith(b"HTTP/1.1 200"))
        yield running, port
    finally:
        running.should_exit = True
        try:
            finish(thread)
        finally:
            listening.close()


def advance(running: _Server, seconds: float) -> None:
    """Let the clock of a running server go ahead: what it does after so many seconds it does now."""
    loop = running.servers[0].get_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
    loop.call_soon_threadsafe(lambda: None)


def answer(port: int, line: str, headers: str = "", body: bytes = b"") -> bytes:
    """All that comes back over a connection of its own."""
    with socket.create_connection(("127.0.0.1", port), timeout=LONG) as connection:
        head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{headers}"
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        connection.sendall(f"{head}{length}\r\n".encode() + body)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def picture(kind: str = "PNG", size: tuple[int, int] = (50, 40), seed: int = 0) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, kind)
    return out.getvalue()


def error(response: Any, status: int, code: str) -> str:
    """The message of an error, which must be of this kind and tell nothing of the machine."""
    assert response.status_code == status, response.text
    said = response.json()
    assert set(said) == {"error"}
    assert said["error"]["code"] == code
    text = json.dumps(said)
    assert "Traceback" not in text
    assert "/tmp" not in text
    assert ".py" not in text
    return str(said["error"]["message"])
