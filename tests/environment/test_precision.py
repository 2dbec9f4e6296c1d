"""Whether reduced precision works is tried in a child process that may die, and remembered."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from polysem.environment import precision
from polysem.environment.precision import (
    ISA_VARIABLE,
    Precision,
    is_remembered,
    limit_instruction_set,
    reduced_precision,
    reduced_precisions,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "cache"))
    for name in (ISA_VARIABLE, "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(name, raising=False)
    precision._reduced_precision.cache_clear()
    yield tmp_path / "cache" / "precision.json"
    precision._reduced_precision.cache_clear()


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    """A Python whose trial ends as the shell lines say; it counts how often it was started."""
    log = tmp_path / "started"

    def install(lines: str) -> None:
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\necho started >> '{log}'\n{lines}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(script))

    install.started = lambda: log.read_text().count("started") if log.exists() else 0
    return install


FASTER, SLOWER = "echo '{\"speedup\": 2.5}'", "echo '{\"speedup\": 0.05}'"


def crashing_unless(isa: str) -> str:
    return f'[ "${ISA_VARIABLE}" = {isa} ] || kill -ILL $$\n{FASTER}'


@pytest.mark.slow
def test_the_real_trial_answers_or_is_killed():
    found = reduced_precision("bf16")
    assert found.works == (found.problem is None)
    assert found.works == (found.speedup is not None)


def test_what_works_is_timed_and_remembered(interpreter, cache):
    interpreter(FASTER)
    assert not is_remembered()
    assert reduced_precisions() == (Precision("bf16", True, 2.5), Precision("fp16", True, 2.5))
    assert reduced_precision("bf16").pays
    assert is_remembered()
    precision._reduced_precision.cache_clear()  # as in another process
    reduced_precisions()
    assert interpreter.started() == 2


def test_what_works_but_is_slower_does_not_pay(interpreter):
    interpreter(SLOWER)
    assert reduced_precision("bf16").works
    assert not reduced_precision("bf16").pays


def test_a_crash_is_survived_and_the_safe_instruction_set_is_found(interpreter):
    interpreter(crashing_unless("AVX512_CORE_BF16"))
    found = reduced_precision("bf16")
    assert (found.works, found.problem, found.max_cpu_isa) == (False, "killed by SIGILL", "AVX512_CORE_BF16")
    assert f"{ISA_VARIABLE}=AVX512_CORE_BF16" in found.remedy


def test_where_no_instruction_set_helps_float32_is_the_remedy(interpreter):
    interpreter("kill -ILL $$")
    found = reduced_precision("bf16")
    assert (found.works, found.max_cpu_isa) == (False, None)
    assert "training.precision=fp32" in found.remedy
    assert interpreter.started() == 1 + len(precision.SAFE_ISAS)


def test_the_command_line_sets_the_safe_instruction_set_from_then_on(interpreter, monkeypatch):
    interpreter(crashing_unless("AVX512_CORE_BF16"))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    limit_instruction_set()
    assert ISA_VARIABLE not in os.environ, "nothing is known yet"
    reduced_precision("bf16")
    limit_instruction_set()
    try:
        assert os.environ[ISA_VARIABLE] == "AVX512_CORE_BF16"
        assert reduced_precision("bf16").works
        os.environ[ISA_VARIABLE] = "AVX2"
        limit_instruction_set()
        assert os.environ[ISA_VARIABLE] == "AVX2", "what the user has set stays"
    finally:
        os.environ.pop(ISA_VARIABLE)


def test_once_torch_runs_nothing_is_set(interpreter):
    interpreter(crashing_unless("AVX512_CORE_BF16"))
    reduced_precision("bf16")
    assert "torch" in sys.modules
    limit_instruction_set()
    assert ISA_VARIABLE not in os.environ


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("echo 'ImportError: no torch' >&2; exit 1", "failed: ImportError: no torch"),
        ("exit 3", "failed: without a message"),
        ("echo nonsense", "could not be tried: "),
    ],
)
def test_a_torch_that_does_not_start_is_said(interpreter, lines, says):
    interpreter(lines)
    found = reduced_precision("bf16")
    assert not found.works
    assert found.problem.startswith(says)


def test_no_interpreter_at_all(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert "no Python interpreter" in reduced_precision("bf16").problem


@pytest.mark.parametrize("damage", ["", "[]", "{", "null", "all wrong"])
def test_a_damaged_memory_is_made_again(interpreter, cache: Path, damage):
    interpreter(FASTER)
    reduced_precision("bf16")
    key = next(iter(json.loads(cache.read_text())))
    wrong = {key: {"bf16": {"dtype": "bf16", "works": "yes"}, "fp16": 3}}
    cache.write_text(json.dumps(wrong) if damage == "all wrong" else damage)
    precision._reduced_precision.cache_clear()
    assert reduced_precisions()[0] == Precision("bf16", True, 2.5)
    assert json.loads(cache.read_text())[key]["fp16"]["works"] is True


def test_a_cache_that_cannot_be_written_is_done_without(interpreter, tmp_path, monkeypatch):
    interpreter(FASTER)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POLYSEM_CACHE", str(tmp_path / "file" / "cache"))
    assert reduced_precision("bf16").works


def test_another_torch_is_tried_anew(interpreter, monkeypatch):
    interpreter(FASTER)
    reduced_precision("bf16")
    monkeypatch.setattr(precision, "installed_version", lambda name: "99.0")
    reduced_precision("bf16")
    assert interpreter.started() == 2
