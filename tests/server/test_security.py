"""Who is let in: tokens, names, origins; and what browsers are told."""

from __future__ import annotations

import json
import socket

import pytest
from fastapi import FastAPI

from polysem.errors import ConfigError
from polysem.server import Limits, Settings
from polysem.server.settings import read_token
from server.running import BEARER, HOST, TOKEN, answer, client, error, picture, read_all, server
from waiting import LONG

READS = ["/api/v1/stats", "/api/v1/search?q=red", "/api/v1/items/red.png", "/api/v1/items/red.png/image", "/metrics"]


# ------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_off_loopback_a_token_is_demanded(host):
    with pytest.raises(ConfigError, match="token"):
        Settings(host=host)
    assert Settings(host=host, token=TOKEN).reads_need_token


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback_needs_none(host):
    assert Settings(host=host).is_loopback
    assert not Settings(host=host).reads_need_token


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "with a space in it it is", "nöt-äscii-but-long-enough"])
def test_weak_tokens_are_refused(token):
    with pytest.raises(ConfigError, match="openssl rand"):
        Settings(token=token)


def test_a_token_file_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(tmp_path / "none")
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(ConfigError, match="ASCII"):
        read_token(path)


# --------------------------------------------------------------------------------------------------------- tokens


@pytest.fixture(scope="module")
def guarded(place, model):
    with client(place, model, Settings(host="0.0.0.0", token=TOKEN, limits=Limits(rate=0, failures=1000))) as made:
        yield made


@pytest.mark.parametrize("path", READS)
def test_off_loopback_nothing_is_read_without_the_token(guarded, path):
    error(guarded.get(path), 401, "unauthorised")
    error(guarded.get(path, headers={"Authorization": f"Bearer {TOKEN}x"}), 401, "unauthorised")
    error(guarded.get(path, headers={"Authorization": f"Basic {TOKEN}"}), 401, "unauthorised")
    error(guarded.get(path, headers={"Authorization": "Bearer "}), 401, "unauthorised")
    assert guarded.get(path, headers=BEARER).status_code == 200


def test_the_page_and_health_are_no_secrets(guarded):
    assert guarded.get("/healthz").status_code == 200
    assert guarded.get("/docs").status_code == 200
    assert guarded.get("/openapi.json").status_code == 200


def test_a_session_reads_and_does_not_write(guarded):
    error(guarded.post("/api/v1/session"), 401, "unauthorised")
    made = guarded.post("/api/v1/session", headers=BEARER)
    cookie = made.headers["set-cookie"]
    assert made.status_code == 204
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    guarded.cookies.clear()
    session = {"Cookie": cookie.partition(";")[0]}
    assert guarded.get("/api/v1/items/red.png/image", headers=session).status_code == 200
    assert guarded.post("/api/v1/search", json={"text": "red"}, headers=session).status_code == 200
    error(guarded.delete("/api/v1/items/red.png", headers=session), 401, "unauthorised")
    error(guarded.get("/api/v1/stats", headers={"Cookie": f"polysem_session={TOKEN}"}), 401, "unauthorised")


def test_changes_need_the_token_on_loopback_too(place, model, reader):
    sent = {"file": ("x.png", picture(), "image/png")}
    error(reader.post("/api/v1/items", files=sent, headers=BEARER), 403, "forbidden")
    error(reader.delete("/api/v1/items/red.png", headers=BEARER), 403, "forbidden")
    with client(place, model, Settings(token=TOKEN, limits=Limits(rate=0))) as writing:
        error(writing.post("/api/v1/items", files=sent), 401, "unauthorised")
        error(writing.delete("/api/v1/items/red.png"), 401, "unauthorised")
        assert writing.get("/api/v1/stats").json()["token"] == "writes"
    with client(place, model, Settings(token=TOKEN, read_only=True, limits=Limits(rate=0))) as reading:
        error(reading.post("/api/v1/items", files=sent, headers=BEARER), 403, "forbidden")
        error(reading.delete("/api/v1/items/red.png", headers=BEARER), 403, "forbidden")
        assert reading.get("/api/v1/stats").json()["writable"] is False
    assert reader.get("/api/v1/items/red.png").status_code == 200


def test_tokens_are_compared_in_constant_time(place, model, monkeypatch):
    import polysem.server.auth as auth

    compared = []
    real = auth.secrets.compare_digest

    def watched(a, b):
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(auth.secrets, "compare_digest", watched)
    with client(place, model, Settings(token=TOKEN, limits=Limits(rate=0)), wait=False) as made:
        made.delete("/api/v1/items/none", headers={"Authorization": "Bearer x"})
        made.delete("/api/v1/items/none", headers=BEARER)
    assert len(compared) >= 2
    assert set(compared) == {(32, 32)}  # digests: not even the length tells


def test_guessing_is_slowed_down(place, model):
    settings = Settings(host="0.0.0.0", token=TOKEN, limits=Limits(rate=0, failures=5))
    with client(place, model, settings, wait=False) as made:
        wrong = {"Authorization": "Bearer wrong-wrong-wrong-wrong"}
        statuses = [made.get("/metrics", headers=wrong).status_code for _ in range(8)]
        assert statuses == [401] * 5 + [429] * 3
        error(made.get("/metrics", headers=BEARER), 429, "rate_limited")  # or the right one could be told by trying


def test_the_cookie_of_an_older_token_locks_nobody_out(place, model):
    """A page full of pictures sends it dozens of times; so does one whose neighbour on another port set it."""
    settings = Settings(host="0.0.0.0", token=TOKEN, limits=Limits(rate=0, failures=5))
    with client(place, model, settings) as made:
        old = {"Cookie": "polysem_session=" + "0" * 64}
        for _ in range(20):
            error(made.get("/api/v1/items/red.png/image", headers=old), 401, "unauthorised")
        assert made.get("/api/v1/stats", headers={**old, **BEARER}).status_code == 200


# ------------------------------------------------------------------------------------------------ names and origins


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1.evil.example",
        "192.168.1.5:8000",
        "[",
        "",
        "a b",
        "localhost.evil",
    ],
)
def test_rebound_names_are_refused(reader, host):
    for path in ("/", "/api/v1/stats", "/healthz", "/static/index.html"):
        error(reader.get(path, headers={"Host": host}), 400, "bad_request")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:9", "[::1]:8000"])
def test_own_names_are_known(reader, host):
    assert reader.get("/api/v1/stats", headers={"Host": host}).status_code == 200


def test_names_can_be_added(place, model):
    with client(place, model, Settings(names=("photos.home",), limits=Limits(rate=0))) as made:
        assert made.get("/healthz", headers={"Host": "photos.home:8000"}).status_code == 200
        error(made.get("/healthz", headers={"Host": "other.home"}), 400, "bad_request")


def test_off_loopback_addresses_are_known_and_names_are_not(guarded):
    assert guarded.get("/healthz", headers={"Host": "192.168.1.5:8000"}).status_code == 200
    assert guarded.get("/healthz", headers={"Host": socket.gethostname()}).status_code == 200
    error(guarded.get("/healthz", headers={"Host": "evil.example"}), 400, "bad_request")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": HOST},
    ],
    ids=str,
)
def test_other_sites_may_not_write_or_read(writer, headers):
    sent = {"file": ("x.png", picture(), "image/png")}
    error(writer.post("/api/v1/items", files=sent, headers={**BEARER, **headers}), 403, "forbidden")
    error(writer.delete("/api/v1/items/red.png", headers={**BEARER, **headers}), 403, "forbidden")
    error(writer.post("/api/v1/search", json={"text": "a"}, headers=headers), 403, "forbidden")
    error(writer.get("/api/v1/items/red.png/image", headers=headers), 403, "forbidden")
    assert writer.get("/api/v1/items/red.png").status_code == 200


def test_the_own_page_and_links_to_it_are_welcome(reader):
    own = {"Origin": HOST, "Sec-Fetch-Site": "same-origin"}
    assert reader.post("/api/v1/search", json={"text": "a"}, headers=own).status_code == 200
    assert reader.get("/docs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


# -------------------------------------------------------------------------------------------------------- headers


@pytest.mark.parametrize("path", ["/docs", "/docs/static/reference.js", "/api/v1/stats", "/healthz", "/none", *READS])
def test_every_answer_tells_the_browser_what_it_may_not(reader, path):
    headers = reader.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "*" not in policy
    assert ("sandbox" in policy) != headers["content-type"].startswith("text/html")


def test_errors_carry_the_headers_too(reader):
    refused = reader.get("/", headers={"Host": "evil.example"})
    assert refused.headers["x-content-type-options"] == "nosniff"


def test_pages_hold_nothing_inline_and_ask_nobody_else(reader):
    for path in ("/", "/docs"):
        page = reader.get(path)
        if page.status_code == 404:
            continue
        text = page.text.lower()
        assert "<style" not in text
        assert " style=" not in text
        assert "<script>" not in text
        assert " onclick" not in text
        assert "https://" not in text


# ---------------------------------------------------------------------------------------- nothing leaks, no trace


def test_an_error_nobody_foresaw_is_a_plain_500(reader, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("secret /etc/passwd")

    monkeypatch.setattr("polysem.server.routes.search.run_search", broken)
    failed = reader.post("/api/v1/search", json={"text": "a"})
    assert "passwd" not in error(failed, 500, "internal")
    assert "secret /etc/passwd" in caplog.text


def test_the_librarys_own_messages_stay_here(reader, monkeypatch):
    from polysem.errors import InputError
    from polysem.search import SearchError

    for kind, status in ((InputError, 400), (SearchError, 500)):

        def broken(*_, kind=kind):
            raise kind("Cannot read /home/me/index.sqlite")

        monkeypatch.setattr("polysem.server.routes.search.run_search", broken)
        failed = reader.post("/api/v1/search", json={"text": "a"})
        assert failed.status_code == status
        assert "/home" not in failed.text


def test_no_answer_names_a_path(reader, place, photos):
    for path in ("/api/v1/stats", "/api/v1/model", "/api/v1/search?q=red", "/api/v1/items/red.png", "/openapi.json"):
        text = json.dumps(reader.get(path).json())
        assert str(photos) not in text
        assert str(place) not in text


@pytest.mark.parametrize(
    "path", ["/api/v1/none", "/api/v2/search", "/nothing", "/api/v1/search/", "/static", "/static/none.js"]
)
def test_what_is_not_there_is_not_there(reader, path):
    error(reader.get(path), 404, "not_found")


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/api/v1/items/red.png/image", "/api/v1/none"])
def test_head_says_what_get_says_without_the_body(reader, path):
    head, whole = reader.head(path), reader.get(path)
    assert head.status_code == whole.status_code
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.content == b""


def test_other_methods_are_not_allowed(reader):
    error(reader.put("/api/v1/search", json={}), 405, "method_not_allowed")
    error(reader.delete("/healthz"), 405, "method_not_allowed")
    assert reader.request("TRACE", "/api/v1/search").status_code == 405


def test_the_framework_reports_to_nobody(reader, monkeypatch):
    monkeypatch.setattr("fastapi.telemetry._asgi.trace.get_tracer_provider", object)  # as if somebody had set one up
    assert FastAPI()._native_telemetry.enabled()
    assert not reader.app._native_telemetry.enabled()


# ------------------------------------------------------------------------------------------- over a real connection


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("POST /api/v1/items", "Content-Type: multipart/form-data; boundary=x\r\n", 401),
        (
            "POST /api/v1/items",
            f"Content-Type: multipart/form-data; boundary=x\r\nAuthorization: Bearer {TOKEN}x\r\n",
            401,
        ),
        ("POST /api/v1/search", "Content-Type: text/plain\r\n", 415),
    ],
    ids=str,
)
def test_who_may_not_is_told_before_the_body_is_taken_in(place, model, line, headers, status):
    with (
        server(place, model, Settings(port=0, token=TOKEN, limits=Limits(rate=0))) as (_, port),
        socket.create_connection(("127.0.0.1", port), timeout=LONG) as connection,
    ):
        head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}Content-Length: 60000\r\n\r\n"
        connection.sendall(head.encode())  # and nothing of the body
        assert connection.recv(12) == f"HTTP/1.1 {status}".encode()


def test_headers_cannot_be_injected(place, model):
    with server(place, model) as (_, port):
        split = answer(port, "GET /api/v1/items/x%0d%0aSet-Cookie:%20a=b/image")
        assert split.startswith(b"HTTP/1.1 404")
        assert b"set-cookie" not in split.lower()
        quoted = answer(port, "GET /api/v1/search?q=a%0d%0aX-Evil:%201&k=1")
        assert b"\r\nX-Evil" not in quoted
        assert answer(port, "GET /healthz", "X-Bad: a\0b\r\n").startswith(b"HTTP/1.1 400")
        assert answer(port, "GET /healthz", "Host: evil.example\r\n").startswith(b"HTTP/1.1 400")
        both = answer(port, "POST /api/v1/search", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", b"0\r\n\r\n")
        assert both.startswith(b"HTTP/1.1 4")
        with socket.create_connection(("127.0.0.1", port), timeout=LONG) as endless:
            endless.sendall(b"GET /" + b"a" * 50_000)  # and no end in sight
            assert read_all(endless).startswith(b"HTTP/1.1 400")
        # An upgrade nobody offers, and an address that is no address, are plain requests.
        assert answer(port, "GET /healthz", "Connection: Upgrade\r\nUpgrade: websocket\r\n").startswith(b"HTTP/1.1 200")
        assert answer(port, "GET http://evil.example/api/v1/stats")[:12] in (b"HTTP/1.1 404", b"HTTP/1.1 400")
        healthy = answer(port, "GET /healthz")
        assert b"\r\nserver:" not in healthy.lower()
