import json
import subprocess
import sys

import pytest

from sample_data import karpathy


def run(*arguments, cwd=None):
    script = "from polysem.cli import main; main()"
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)


@pytest.fixture
def toy(tmp_path):
    karpathy(tmp_path / "toy", [{"filename": "a.png"}, {"filename": "b.png", "captions": ["b'x'"]}])
    return tmp_path / "toy"


def test_check_lists_what_it_finds_and_fails_on_errors(toy):
    done = run("data", "check", toy)
    assert done.returncode == 1
    assert "bytes caption" in done.stdout
    assert "Not sound" in done.stdout
    mended = run("data", "check", toy, "--repair-bytes")
    assert mended.returncode == 0
    assert "Sound." in mended.stdout


def test_check_speaks_json(toy):
    report = json.loads(run("data", "check", toy, "--json").stdout)
    assert report["sound"] is False
    assert report["items"] == 2
    assert [problem["kind"] for problem in report["problems"]] == ["bytes caption"]


def test_show_prints_figures_and_writes_a_sheet(toy):
    done = run("data", "show", toy, "--repair-bytes", "--json", cwd=toy)
    figures = json.loads(done.stdout)
    assert (figures["items"], figures["captions"]) == (2, 3)
    assert (toy / figures["contact_sheet"]).is_file()
    assert "2 (image)" in run("data", "show", toy, "--repair-bytes", cwd=toy).stdout


def test_errors_are_one_line_without_a_trace(toy):
    done = run("data", "show", toy / "absent")
    assert done.returncode == 1
    assert done.stderr.startswith("polysem: ")
    assert "Traceback" not in done.stderr
    assert "split of toy" in run("data", "show", toy, "--repair-bytes", "--split", "tset").stderr


@pytest.mark.parametrize("command", ["check", "show"])
def test_help_has_an_example(command):
    assert f"Example: polysem data {command}" in run("data", command, "--help").stdout
