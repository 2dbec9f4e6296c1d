"""Inputs made to break the server: each is refused in bounded time and memory, and the next request is answered."""

from __future__ import annotations

import asyncio
import io
import resource
import socket
import struct
import threading
import zlib
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest
from PIL import Image

from polysem.server import Limits, Settings, middleware
from server.running import BEARER, TOKEN, advance, answer, client, error, picture, read_all, server
from waiting import LONG, finish, wait_for, wait_until


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims this size in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def upload(made, data: bytes, name: str = "x.png"):
    return made.post("/api/v1/uploads", files={"file": (name, data, "image/png")})


def peak_kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ------------------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize("size", [(100_000, 100_000), (2**31 - 1, 2**31 - 1), (60_000_000, 1), (50_001, 1000)])
def test_a_bomb_is_refused_before_it_unfolds(reader, size):
    before = peak_kilobytes()
    refused = upload(reader, png_header(*size))
    assert refused.status_code in (400, 413)
    error(refused, refused.status_code, {400: "bad_request", 413: "too_large"}[refused.status_code])
    assert peak_kilobytes() - before < 100_000


def test_a_bomb_in_another_format_is_refused_too(reader):
    out = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(out, "TIFF", compression="group4")
    assert len(out.getvalue()) < 100_000
    error(upload(reader, out.getvalue()), 413, "too_large")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_truncated_picture_is_refused(reader, kind):
    whole = picture(kind, (200, 150))
    assert upload(reader, whole).status_code == 200
    for length in (0, 1, 10, len(whole) // 3, len(whole) * 9 // 10):
        error(upload(reader, whole[:length]), 400, "bad_request")


def test_damage_anywhere_is_no_500(reader):
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        whole = bytearray(picture(kind, (40, 30)))
        for place in range(0, len(whole), max(1, len(whole) // 25)):
            broken = bytes(whole[:place]) + bytes([whole[place] ^ 0xFF]) + bytes(whole[place + 1 :])
            assert upload(reader, broken).status_code in (200, 400, 413)


PAYLOAD = b"<html><script>alert(document.domain)</script></html>"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_of_a_polyglot_only_the_pixels_come_back(reader, kind):
    polyglot = picture(kind) + PAYLOAD
    sent = upload(reader, polyglot, "x.html").json()
    small = reader.get(f"/api/v1/uploads/{sent['image']}/thumbnail")
    assert PAYLOAD not in small.content
    assert small.headers["content-type"] == "image/jpeg"
    assert small.headers["x-content-type-options"] == "nosniff"


def test_a_polyglot_that_was_added_is_a_picture_and_nothing_else(writer):
    polyglot = picture("GIF") + PAYLOAD
    form = {"item": '{"id": "page.html"}'}
    added = writer.post("/api/v1/items", files={"file": ("p.html", polyglot, "text/html")}, data=form, headers=BEARER)
    assert added.status_code == 201
    whole = writer.get("/api/v1/items/page.html/image")
    assert whole.headers["content-type"] == "image/gif"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in whole.headers["content-security-policy"]
    assert PAYLOAD not in writer.get("/api/v1/items/page.html/image?size=160").content


@pytest.mark.parametrize(
    "data",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/etc/passwd) (r) file\n",
        b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        b"#!/bin/sh\nreboot\n",
        b"8BPS\0\1" + b"\0" * 100,
        b"P6 100000 100000 255\n",
    ],
    ids=["eps", "svg", "script", "psd", "ppm"],
)
def test_formats_that_nobody_photographs_in_reach_no_decoder(reader, data):
    error(upload(reader, data), 400, "bad_request")


# --------------------------------------------------------------------------------------------------------- bodies


def test_large_bodies_are_refused(reader):
    error(reader.post("/api/v1/search", content=b"x" * 70_000), 413, "too_large")


def test_a_body_longer_than_it_said_is_cut_off(place, model):
    limits = Limits(rate=0, upload_bytes=100_000, json_bytes=1000)
    with server(place, model, Settings(port=0, limits=limits)) as (_, port):
        announced = answer(port, "POST /api/v1/uploads", "Content-Length: 99999999999\r\n")
        assert announced.startswith(b"HTTP/1.1 413")
        chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=LONG) as connection:
            head = f"POST /api/v1/uploads HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nTransfer-Encoding: chunked\r\n"
            kind = "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
            connection.sendall((head + kind).encode())
            try:
                for _ in range(1000):  # 4 MB, of which 100 kB are allowed
                    connection.sendall(chunk)
            except OSError:  # hung up on, as it should be
                pass
            assert read_all(connection)[:12] in (b"HTTP/1.1 413", b"")
        assert answer(port, "GET /healthz").startswith(b"HTTP/1.1 200")


def test_forms_of_a_thousand_fields_are_refused(reader):
    fields = {f"field{n}": "x" for n in range(2000)}
    files = {"file": ("x.png", picture(), "image/png")}
    error(reader.post("/api/v1/uploads", data=fields, files=files), 400, "bad_request")


# ------------------------------------------------------------------------------------------------- rates and crowds


def test_a_client_that_asks_too_often_is_slowed_down(place, model, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(middleware, "TokenBuckets", partial(middleware.TokenBuckets, clock=lambda: now[0]))
    with client(place, model, Settings(limits=Limits(rate=5.0, burst_seconds=2.0))) as made:
        answers = [made.get("/api/v1/items/red.png") for _ in range(15)]
        statuses = [each.status_code for each in answers]
        assert statuses[:10] == [200] * 10
        assert statuses[10:] == [429] * 5
        refused = answers[10]
        assert int(refused.headers["retry-after"]) == 1
        error(refused, 429, "rate_limited")
        assert made.get("/healthz").status_code == 200
        now[0] = 1.0  # after the seconds that it was told
        metrics = made.get("/metrics")
        assert metrics.status_code == 200
        assert 'polysem_refused_total{why="rate"} 5' in metrics.text


def test_overload_is_answered_at_once(place, model, monkeypatch):
    release = threading.Event()
    real = __import__("polysem.server.routes.search", fromlist=["run_search"]).run_search

    def slow(*given):
        wait_for(release)
        return real(*given)

    monkeypatch.setattr("polysem.server.routes.search.run_search", slow)
    with client(place, model, Settings(limits=Limits(rate=0, work=4, threads=2, request_seconds=LONG))) as made:
        answers: list[int] = []

        def ask() -> None:
            answers.append(made.post("/api/v1/search", json={"text": "a"}).status_code)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: made.app.state.polysem.workers.busy == 4)
        refused = made.post("/api/v1/search", json={"text": "a"})
        error(refused, 503, "overloaded")
        assert answers == [], "it did not wait for any of the others"
        assert refused.headers["retry-after"] == "1"
        assert made.get("/healthz").status_code == 200
        release.set()
        finish(*threads)
        assert answers == [200] * 4
        assert made.post("/api/v1/search", json={"text": "a"}).status_code == 200


def test_too_many_requests_under_way_are_refused(place, model, monkeypatch):
    release = threading.Event()

    def slow(*_):
        wait_for(release)
        raise RuntimeError("never mind")

    monkeypatch.setattr("polysem.server.routes.search.run_search", slow)
    with client(place, model, Settings(limits=Limits(rate=0, requests=2, threads=2, request_seconds=LONG))) as made:
        threads = [
            threading.Thread(target=made.post, args=("/api/v1/search",), kwargs={"json": {"text": "a"}})
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: made.app.state.polysem.metrics.in_flight == 2)
        error(made.get("/api/v1/stats"), 503, "overloaded")
        release.set()
        finish(*threads)
        assert made.get("/api/v1/stats").status_code == 200


def test_what_takes_too_long_is_given_up_and_its_thread_not_forgotten(place, model, monkeypatch):
    release = threading.Event()
    given: list[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = []

    def timeout(seconds):
        assert seconds == 0.5
        given.append((asyncio.get_running_loop(), asyncio.timeout(None)))
        return given[-1][1]

    def slow(*_):
        loop, own = given[-1]
        loop.call_soon_threadsafe(own.reschedule, 0.0)  # its time is up while this runs, and not before
        wait_for(release)
        raise RuntimeError("never mind")

    monkeypatch.setattr("polysem.server.routes.search.run_search", slow)
    monkeypatch.setattr("polysem.server.middleware.asyncio", SimpleNamespace(timeout=timeout))
    with client(place, model, Settings(limits=Limits(rate=0, request_seconds=0.5))) as made:
        error(made.post("/api/v1/search", json={"text": "a"}), 504, "timeout")
        assert made.app.state.polysem.workers.busy == 1
        release.set()
        wait_until(lambda: made.app.state.polysem.workers.busy == 0)


# ----------------------------------------------------------------------------------------------------- slow clients


def test_slow_clients_are_hung_up_on_and_others_served(place, model):
    limits = Limits(rate=0, header_seconds=LONG, request_seconds=LONG)
    with server(place, model, Settings(port=0, limits=limits)) as (running, port):
        here = ("127.0.0.1", port)
        silent = socket.create_connection(here, timeout=LONG)
        dripping = socket.create_connection(here, timeout=LONG)
        dripping.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ")
        idle = socket.create_connection(here, timeout=LONG)
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        body = socket.create_connection(here, timeout=LONG)
        body.sendall(
            b"POST /api/v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        said = b""
        while not said.endswith(b"}"):
            said += idle.recv(65536)
        assert said.startswith(b"HTTP/1.1 200")
        # The server has come past the end of that answer once it gives another one.
        assert answer(port, "GET /healthz").startswith(b"HTTP/1.1 200")
        wait_until(lambda: len(running.server_state.connections) == 4 and running._polysem.metrics.in_flight == 1)
        for _ in range(2):  # a byte now and then must not buy more time
            advance(running, 0.25 * LONG)
            assert answer(port, "GET /healthz").startswith(b"HTTP/1.1 200")
            dripping.sendall(b"a")
            assert len(running.server_state.connections) == 4
        advance(running, 0.55 * LONG)
        assert answer(port, "GET /healthz").startswith(b"HTTP/1.1 200")
        assert read_all(dripping) == b""
        assert read_all(silent) == b""
        assert read_all(idle) == b""
        assert read_all(body).startswith(b"HTTP/1.1 408")
        for connection in (silent, dripping, idle, body):
            connection.close()


def test_who_does_not_read_the_answer_does_not_keep_the_server(place, model, photos):
    limits = Limits(rate=0, request_seconds=LONG, shutdown_seconds=5)
    with server(place, model, Settings(port=0, limits=limits)) as (running, port):
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            deaf.connect(("127.0.0.1", port))
            request = f"GET /api/v1/items/red.png/image HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
            sending = threading.Thread(target=send_all, args=(deaf, request * 4000))
            sending.start()
            wait_until(lambda: any(each.flow.write_paused for each in running.server_state.connections))
            assert answer(port, "GET /healthz").startswith(b"HTTP/1.1 200")
            advance(running, LONG + 1)
            wait_until(lambda: not running.server_state.connections)  # disconnected, though it is still there
            finish(sending)
        wait_until(lambda: not running.server_state.tasks)
        assert answer(port, "GET /healthz").startswith(b"HTTP/1.1 200")


def send_all(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        connection.sendall(data)


def test_a_crowd_of_silent_connections_keeps_nobody_out(place, model):
    """As many as an ordinary limit on open files allows; `benchmarks/serve.py` opens ten thousand."""
    limits = Limits(rate=0, connections=50, header_seconds=LONG)
    with server(place, model, Settings(port=0, limits=limits)) as (running, port):
        crowd = [socket.create_connection(("127.0.0.1", port), timeout=LONG) for _ in range(300)]
        assert answer(port, "GET /healthz").startswith(b"HTTP/1.1 200")
        assert len(running.server_state.connections) <= 50
        assert all(read_all(each) == b"" for each in crowd[:200]), "the first to come were the first to go"
        for connection in crowd:
            connection.close()


def test_where_every_connection_is_being_answered_a_new_one_is_told_to_come_back(place, model, monkeypatch):
    release = threading.Event()
    real = __import__("polysem.server.routes.search", fromlist=["run_search"]).run_search

    def slow(*given):
        wait_for(release)
        return real(*given)

    monkeypatch.setattr("polysem.server.routes.search.run_search", slow)
    limits = Limits(rate=0, connections=3, request_seconds=LONG)
    with server(place, model, Settings(port=0, limits=limits)) as (running, port):
        answers: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: answers.append(answer(port, "GET /api/v1/search?q=red"))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: running._polysem.workers.busy == 3)
        assert answer(port, "GET /healthz").startswith(b"HTTP/1.1 503")
        release.set()
        finish(*threads)
        assert all(each.startswith(b"HTTP/1.1 200") for each in answers)
        assert answer(port, "GET /healthz").startswith(b"HTTP/1.1 200")


def test_a_token_of_many_kinds_of_bytes_is_only_wrong(place, model):
    with client(place, model, Settings(token=TOKEN, limits=Limits(rate=0, failures=1000)), wait=False) as made:
        for wrong in (b"\xff\xfe", b"a" * 8000, "tökén".encode(), b"%00", b"null"):
            refused = made.delete("/api/v1/items/red.png", headers={"Authorization": b"Bearer " + wrong})
            error(refused, 401, "unauthorised")
