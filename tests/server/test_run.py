"""From start to end: quick to answer, honest about being ready, and orderly when it stops."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from polysem.cli import app
from polysem.errors import ConfigError, InputError
from polysem.search import Index
from polysem.server import Limits, Settings, serve
from server.running import BEARER, TOKEN, answer, client, error, picture, server
from waiting import LONG, finish, wait_for, wait_until

pytestmark = pytest.mark.slow


def test_until_the_model_is_loaded_the_server_says_so(place, model, monkeypatch):
    from polysem.server.state import State

    go = threading.Event()
    real = State._warm_up

    def slow(self, index):
        wait_for(go)
        real(self, index)

    monkeypatch.setattr(State, "_warm_up", slow)
    with client(place, model, wait=False) as made:
        assert made.get("/healthz").json() == {"status": "starting"}
        assert made.get("/healthz").status_code == 503
        early = made.post("/api/v1/search", json={"text": "a"})
        error(early, 503, "starting")
        assert early.headers["retry-after"] == "1"
        for path in ("/api/v1/stats", "/api/v1/map", "/api/v1/model"):
            error(made.get(path), 503, "starting")
        assert made.get("/docs").status_code == 200
        assert "polysem_ready 0.0" in made.get("/metrics").text
        go.set()
        wait_until(lambda: made.get("/healthz").json() == {"status": "ready"})
        assert made.post("/api/v1/search", json={"text": "a"}).status_code == 200


def test_importing_the_server_loads_no_torch():
    modules = "sys, polysem.server, polysem.cli.search"
    code = f"import {modules}; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_shutdown_finishes_what_is_running(place, model, monkeypatch):
    from polysem.server.routes import search

    real, began, release = search.run_search, threading.Event(), threading.Event()

    def slow(*given):
        began.set()
        wait_for(release)
        return real(*given)

    monkeypatch.setattr(search, "run_search", slow)
    with server(place, model) as (running, port):
        answers: list[bytes] = []
        asking = threading.Thread(target=lambda: answers.append(answer(port, "GET /api/v1/search?q=red")))
        asking.start()
        wait_for(began)
        idle = socket.create_connection(("127.0.0.1", port), timeout=LONG)
        running.handle_exit(signal.SIGTERM, None)
        assert running._polysem.phase == "stopping"
        wait_until(lambda: not any(each.is_serving() for each in running.servers))
        assert answers == []
        release.set()
        finish(asking)
        idle.close()
        assert answers[0].startswith(b"HTTP/1.1 200")
        assert b'"red.png"' in answers[0]
        wait_until(lambda: not listens(port))


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def saved(tmp_path, model, photos):
    """An index whose model is on disk, as one that was made from the command line."""
    model.save(tmp_path / "model")
    with Index.create(tmp_path / "index", tmp_path / "model") as index:
        index.add(photos)
    return tmp_path / "index"


@pytest.mark.slow
def test_the_command_serves_and_ends_when_it_is_asked_to(saved, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    command = [
        sys.executable,
        "-m",
        "polysem",
        "serve",
        str(saved),
        "--port",
        "0",
        "--token-file",
        str(token),
        "--json",
    ]
    if subprocess.run([sys.executable, "-c", "import polysem.__main__"], capture_output=True).returncode:
        command[1:3] = ["-c", "from polysem.cli import main; main()"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = json.loads(running.stdout.readline())["url"]
        port = int(url.rpartition(":")[2])
        assert b'"status":"' in answer(port, "GET /healthz")
        wait_until(lambda: b'"ready"' in answer(port, "GET /healthz"))
        files = (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
            + picture()
            + b"\r\n--x--\r\n"
        )
        kind = "Content-Type: multipart/form-data; boundary=x\r\n"
        said = answer(port, "POST /api/v1/items", f"{kind}Authorization: {BEARER['Authorization']}\r\n", files)
        assert said.startswith(b"HTTP/1.1 201"), said
        running.send_signal(signal.SIGTERM)
        assert running.wait(LONG) == 0
        assert running.stderr.read() == ""
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
        running.stderr.close()
    assert Index.open(saved).stats().by_side["image"] == 5


@pytest.mark.slow
def test_a_killed_server_leaves_a_whole_index(saved, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    code = "from polysem.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(saved), "--port", "0", "--token-file", str(token), "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(json.loads(running.stdout.readline())["url"].rpartition(":")[2])
        wait_until(lambda: b'"ready"' in answer(port, "GET /healthz"))
        told: list[str] = []

        def write() -> None:
            for number in itertools.count():
                about = b'--x\r\nContent-Disposition: form-data; name="item"\r\n\r\n{"id": "%d"}\r\n' % number
                file = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
                body = about + file + picture(seed=number) + b"\r\n--x--\r\n"
                kind = "Content-Type: multipart/form-data; boundary=x\r\n"
                try:
                    said = answer(port, "POST /api/v1/items", f"{kind}Authorization: Bearer {TOKEN}\r\n", body)
                except OSError:
                    return
                if said.startswith(b"HTTP/1.1 201"):
                    told.append(str(number))

        writing = threading.Thread(target=write)
        writing.start()
        wait_until(lambda: len(told) >= 3)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        finish(writing)
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
    with Index.open(saved, write=True) as index:
        assert not index.verify().damage
        assert {item.id for item in index.items(told)} == set(told), "what was confirmed is there"


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_while_it_is_loading_it_ends_at_once(saved, sent):
    code = (
        "import threading; from polysem.server.state import State;"
        "State._open = lambda self: threading.Event().wait(); from polysem.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "serve", str(saved), "--port", "0", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(json.loads(running.stdout.readline())["url"].rpartition(":")[2])
        assert b'"starting"' in answer(port, "GET /healthz")
        running.send_signal(sent)
        assert running.wait(LONG) == -sent
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


@pytest.mark.slow
def test_the_first_signal_waits_for_what_runs_and_the_second_does_not(saved):
    code = (
        "import threading; from polysem.server.routes import search;"
        "search.run_search = lambda *_: threading.Event().wait(); from polysem.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "serve", str(saved), "--port", "0", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        port = int(json.loads(running.stdout.readline())["url"].rpartition(":")[2])
        wait_until(lambda: b'"ready"' in answer(port, "GET /healthz"))
        with socket.create_connection(("127.0.0.1", port)) as asking:
            asking.sendall(f"GET /api/v1/search?q=a HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            wait_until(lambda: b"polysem_work_under_way 1.0\n" in answer(port, "GET /metrics"))
            running.send_signal(signal.SIGINT)
            wait_until(lambda: not listens(port))  # it takes nobody new, and waits for who is there
            assert running.poll() is None
            running.send_signal(signal.SIGINT)
            assert running.wait(LONG) == -signal.SIGINT
        assert "the index is whole" in running.stderr.read()
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
        running.stderr.close()


def test_a_map_nobody_will_see_does_not_hold_up_the_end(place, model, monkeypatch):
    from polysem.server.routes import overview

    ended = []

    def endless(index, method, limit, report):
        try:
            while True:
                report(0.1)
                time.sleep(0.01)
        finally:
            ended.append(True)

    monkeypatch.setattr(overview, "build_map", endless)
    with server(place, model) as (_, port):
        assert b'"ready":false' in answer(port, "GET /api/v1/map")
    assert ended == [True]


def test_what_cannot_be_served_is_told_at_once(tmp_path, saved):
    with pytest.raises(InputError, match="polysem index COLLECTION"):
        serve(tmp_path / "none")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="--port 0"):
            serve(saved, Settings(port=taken.getsockname()[1]))
    with pytest.raises(InputError, match="not an address of this machine"):
        serve(saved, Settings(host="no.such.name.invalid", token=TOKEN))
    with pytest.raises(ConfigError, match="port"):
        Settings(port=70000)


def test_a_model_that_is_gone_ends_the_server_with_the_remedy(saved, tmp_path):
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    addresses: list[str] = []
    with pytest.raises(InputError, match="--model"):
        serve(saved, Settings(port=0), announce=addresses.append)
    assert addresses[0].startswith("http://127.0.0.1:")


def test_the_command_line_refuses_to_listen_to_everyone_without_a_token(saved):
    done = CliRunner().invoke(app, ["serve", str(saved), "--host", "0.0.0.0"])
    assert isinstance(done.exception, ConfigError)
    assert "--token-file" in str(done.exception)
    shown = CliRunner().invoke(app, ["serve", "--help"])
    assert "Example: polysem serve my-index" in shown.stdout


def test_memory_stays_bounded_by_what_is_kept(place, model):
    """Uploads and queries are forgotten as new ones come."""
    with client(place, model, Settings(limits=Limits(rate=0, uploads=5, cached=10))) as made:
        tokens = [
            made.post("/api/v1/uploads", files={"file": ("x.png", picture(seed=n), "image/png")}).json()["image"]
            for n in range(8)
        ]
        for number in range(30):
            made.post("/api/v1/search", json={"text": f"words {number}"})
        state = made.app.state.polysem
        assert (len(state.uploads), len(state.encoding.cache)) == (5, 10)
        error(made.post("/api/v1/search", json={"image": tokens[0]}), 404, "not_found")
        assert made.post("/api/v1/search", json={"image": tokens[-1]}).status_code == 200


def test_an_index_of_another_model_is_refused(tmp_path, place, photos):
    from search.photos import tiny_model

    other = tiny_model(tmp_path, seed=3)
    with client(place, other, wait=False) as made:
        wait_until(lambda: made.app.state.polysem.failed is not None)
        assert "another model" in str(made.app.state.polysem.failed)
        assert made.get("/healthz").status_code == 503
