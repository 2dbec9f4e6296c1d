"""`polysem demo` as a user meets it."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import webbrowser
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import polysem.demo
from demo.tiny import SCENES, fake_packages, make_photos, ship_tiny, tiny_settings
from encoders.tiny_duals import save_dual
from polysem.cli import app
from polysem.cli import demo as command
from polysem.demo import Demo
from polysem.errors import InputError
from polysem.evaluation import Stamp
from polysem.evaluation.reports.compare import Comparison, ComparisonCell, ComparisonRow
from polysem.server import run as running
from waiting import LONG, wait_until

pytestmark = pytest.mark.slow

RUN_TINY = Path(__file__).with_name("run_tiny.py")
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder for all tests of this file: the second run finds what the first one made."""
    return tmp_path_factory.mktemp("a place") / "the demo"


@pytest.fixture(autouse=True)
def _tiny(monkeypatch, encoders):
    fake_packages(monkeypatch)
    ship_tiny(monkeypatch, encoders)
    tiny = partial(polysem.demo.demo, scenes=SCENES, settings=tiny_settings(encoders))
    monkeypatch.setattr(polysem.demo, "demo", tiny)


def call(*arguments: object):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def suggested(shown: str) -> list[str]:
    """The commands that it says to try next."""
    return [line.strip() for line in shown.partition("Try next:")[2].splitlines() if line.startswith("  polysem ")]


def test_it_shows_the_comparison_two_searches_and_what_to_try_next(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("demo", "--out", out, "--no-serve")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(
        f"Everything goes to {out}. Ctrl-C stops; the same command goes on from there.\n1. Emoji"
    )
    assert f"emoji-scenes test, {SCENES // 10}×{SCENES // 2}, hit rate, inductive, selected on val" in done.stdout
    for row in ("single             │ single", "single-equal-bytes │ single", "set                │ set 8 and 1"):
        assert row in done.stdout
    assert done.stdout.count(f"[exact, {SCENES} of {SCENES} images scored in full") == 2
    assert " RSUM (no more than chance would do, p = " in done.stdout
    assert "held-out pictures, and of" in done.stdout
    assert "said of the held-out picture scene_" in done.stdout
    assert "The page" not in done.stdout
    tried = {}
    for line in suggested(done.stdout):
        program, name, *arguments = shlex.split(line)
        assert program == "polysem"
        tried[name] = arguments
    assert list(tried) == ["search", "serve", "map", "diagnose"]
    running.check_index(*tried.pop("serve"))
    for name, arguments in tried.items():
        found = call(name, *arguments)
        assert found.exit_code == 0, (name, found.output, found.exception)
    assert {path.name for path in tmp_path.iterdir()} >= {"map.html", "report.html"}


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        (
            {"single": (400.0, 0.004), "wide": (411.0, 0.3), "set": (412.3, None)},
            "set is ahead of wide by 1.3 RSUM (no more than chance would do, p = 0.3) and of single by 12.3 RSUM "
            "(more than chance would do, p = 0.004).",
        ),
        (
            {"single": (406.0, None), "set": (405.3, 0.93)},
            "single is ahead of set by 0.7 RSUM (no more than chance would do, p = 0.93).",
        ),
        ({"single": (50.0, None), "set": (50.0, None)}, "single is ahead of set by 0.0 RSUM."),
        (
            {"single": (30.0, None), "wide": (51.5, None), "set": (50.0, None), "photo-small": (60.0, None)},
            "photo-small is ahead of wide by 8.5 RSUM, of set by 10.0 RSUM and of single by 30.0 RSUM.",
        ),
    ],
)
def test_it_says_whether_the_difference_means_anything(scores, says):
    rows = [ComparisonRow(name, "", {"rsum": ComparisonCell(score, p=p)}) for name, (score, p) in scores.items()]
    stamp = Stamp("pairs", "toy", "test", 10, 50)
    assert command.describe_lead(Comparison(stamp, ("rsum",), tuple(rows))) == says


def test_a_model_of_the_machine_is_not_said_to_come_with_polysem(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYSEM_MODEL", str(save_dual("clip", tmp_path / "clip")))
    photos = make_photos(tmp_path / "photos", 3, 0)
    done = call("demo", "--out", tmp_path / "out", "--data", photos, "--no-serve")
    assert done.exit_code == 0, done.output
    assert f"The model is {tmp_path / 'clip'}, the best on this machine" in done.stdout
    assert "comes with polysem" not in done.stdout


def test_own_pictures_that_nobody_has_described(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = make_photos(tmp_path / "my [new] photos", 7, 0)
    for number in range(6):
        (photos / f"broken {number}.jpg").write_bytes(b"nothing")
    done = call("demo", "--out", out, "--data", "my [new] photos", "--no-serve")
    assert done.exit_code == 0, done.output
    shown = done.stdout
    told = "0 of its 13 pictures have captions, and learning takes 40 or more"
    assert f"Nothing was trained on my [new] photos: {told}. The model is polysem/photo-small," in shown
    assert "1. Indexing my [new] photos with photo-small: 13 pictures\n" in shown
    assert "RSUM" not in shown
    assert shown.count("Left out: broken ") == 5
    assert "… and 1 more; `polysem data check 'my [new] photos'` lists all." in shown
    assert '"people outdoors" (a guess: these pictures have neither captions nor labels)' in shown
    search, serve, drawn, explain = suggested(shown)
    assert "'people outdoors' --relevant" in search
    assert call(*shlex.split(search)[1:]).exit_code == 0
    assert shlex.split(serve)[2] == shlex.split(drawn)[2]
    assert shlex.split(explain)[:3] == ["polysem", "explain", "polysem/photo-small"]
    assert call(*shlex.split(explain)[1:]).exit_code == 0
    assert (tmp_path / "why.png").exists()


def test_own_pictures_with_captions(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path / "photos")
    done = call("demo", "--out", out, "--data", ".", "--no-serve")
    assert done.exit_code == 0, done.output
    assert "photos 10% held out by id" in done.stdout
    assert "Nothing was trained" not in done.stdout
    assert "photo-small        │ set 2" in done.stdout
    search, _, _, diagnose = suggested(done.stdout)
    assert call(*shlex.split(search)[1:]).exit_code == 0
    assert "diagnose polysem/photo-small --data . --out report.html" in diagnose
    assert call(*shlex.split(diagnose)[1:]).exit_code == 0


@pytest.mark.parametrize(("data", "says"), [("nowhere", "no such file or folder"), ("empty", "no pictures here")])
def test_mistakes_are_named_at_once(tmp_path, monkeypatch, data, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    done = call("demo", "--data", data, "--no-serve")
    assert done.exit_code == 1
    assert data in str(done.exception)
    assert says in str(done.exception)
    assert not (tmp_path / "polysem-demo").exists()


@pytest.mark.parametrize("display", ["", ":0"])
def test_the_page_is_opened_where_there_is_a_display(out, monkeypatch, display):
    opened, served = [], []

    def serve(place, settings, announce):
        served.append((place, settings.host))
        announce("http://127.0.0.1:1")

    monkeypatch.setattr(running, "serve", serve)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    done = call("demo", "--out", out, "--port", "0")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("The page: http://127.0.0.1:1 (Ctrl-C ends it)\n")
    assert served == [(out / "index", "127.0.0.1")]
    assert opened == (["http://127.0.0.1:1"] if display else [])


def test_progress_in_a_log_and_in_a_terminal(monkeypatch, capsys):
    display = command.DemoDisplay(Console())
    monkeypatch.setattr(display, "_log_seconds", 0.0)
    display("indexing", 5, 2000)
    assert capsys.readouterr().err == "   indexing: 5 of 2,000\n"
    drawn = io.StringIO()
    monkeypatch.setattr(display, "console", Console(file=drawn, force_terminal=True, width=100))
    with display:
        for stage in ("ranking", "ranking", "auditing"):
            display(stage, 1, 2)
        bars = display._bars
        assert list(display.stages) == ["ranking", "auditing"]
        assert bars.live.is_started
        display.announce("the next step")
        assert not bars.live.is_started
        display("ranking", 2, 2)
        last = display._bars
    assert not last.live.is_started
    assert "auditing" in drawn.getvalue()


def test_a_taken_port_is_no_obstacle_unless_it_was_asked_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {taken}"):
            command.find_port(taken)
        monkeypatch.setattr(command, "PORT", taken)
        assert command.find_port(taken) == 0
    assert command.find_port(taken) == taken


def test_ctrl_c_while_it_works_and_while_it_shows(out, monkeypatch):
    def interrupted(*_: object, **__: object) -> Demo:
        raise KeyboardInterrupt

    for what in ((polysem.demo, "demo"), (command, "_show"), (command, "_serve")):
        with monkeypatch.context() as patch:
            patch.setattr(*what, interrupted)
            done = call("demo", "--out", out)
        assert done.exit_code == 130, what
        assert f"Stopped. What is done is in {out}: the same command goes on from there." in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_a_real_ctrl_c_then_the_same_command(tmp_path, encoders, out):
    def begin(**more: str) -> subprocess.Popen[str]:
        paths = str(TESTS)
        command = [sys.executable, "-u", str(RUN_TINY), str(encoders), "demo", "--out", "demo", "--no-serve"]
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "error", **more}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, env=environment)

    whole = call("demo", "--out", out, "--no-serve").stdout
    for part in ("scenes", "features"):
        shutil.copytree(out / part, tmp_path / "demo" / part)
    held = tmp_path / "held"
    with begin(HELD=str(held)) as first:
        wait_until(lambda: held.exists() or first.poll() is not None)
        first.send_signal(signal.SIGINT)
        shown, errors = first.communicate(timeout=LONG)
    assert held.exists(), errors
    assert "\n3. Training" in shown
    assert first.returncode == 130, errors
    assert errors.endswith("\nStopped. What is done is in demo: the same command goes on from there.\n")
    assert "Traceback" not in errors
    with begin() as second:
        shown, errors = second.communicate(timeout=LONG)
    assert second.returncode == 0, errors
    assert "Try next:" in shown
    assert table(shown) == table(whole)


def table(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if line.startswith(("│ single", "│ set"))]
