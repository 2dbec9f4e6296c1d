"""Whether reduced precision (bfloat16, float16) works on this processor, and whether it is faster than float32.

A processor's flags do not answer this: a hypervisor may advertise AMX and trap its instructions, and torch is then
killed by SIGILL in the first bfloat16 product. So the products are tried, once, in a child process that may die. The
answer is kept in the cache folder for this machine, torch and environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from polysem.atomic_write import write_text
from polysem.environment.hardware import read_text
from polysem.environment.packages import installed_version
from polysem.environment.paths import cache_folder

DType = Literal["bf16", "fp16"]

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""Limits the instruction set of torch's matrix library. It is read once, so it must be set before torch starts."""

SAFE_ISAS = ("AVX512_CORE_BF16", "AVX2")
"""Tried in this order where the products crash: the first leaves out AMX alone, which float32 does not use."""

_SECONDS = 300  # a safety net for a child that hangs
_FILE = "precision.json"

# Linear, convolution and batched products, forward and backward: what autocast sends to reduced precision.
_TRIAL = """
import json, sys, time
import torch
torch.set_num_threads(1)
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[sys.argv[1]]
network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten(2), torch.nn.Linear(196, 64))
with torch.autocast("cpu", dtype=dtype):
    out = network(torch.randn(2, 3, 16, 16))
    (out @ out.transpose(1, 2)).float().sum().backward()

def seconds(a, b):
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return best

a, b = torch.randn(256, 512), torch.randn(512, 512)
print(json.dumps({"speedup": seconds(a, b) / seconds(a.to(dtype), b.to(dtype))}))
"""


@dataclass(frozen=True)
class Precision:
    """What came of trying one dtype in a process with this environment."""

    dtype: DType
    works: bool
    speedup: float | None = None
    """Of a matrix product over float32, on one thread; None where it does not work."""
    problem: str | None = None
    max_cpu_isa: str | None = None
    """The value of `ONEDNN_MAX_CPU_ISA` under which it works; None where it works as it is, or under none."""

    @property
    def pays(self) -> bool:
        """Whether it is faster than float32."""
        return self.works and self.speedup is not None and self.speedup > 1

    @property
    def remedy(self) -> str:
        """What to do where it does not work."""
        if self.max_cpu_isa is None:
            return "Use float32: --set training.precision=fp32."
        return (
            f"Set {ISA_VARIABLE}={self.max_cpu_isa} in the environment before Python starts "
            "(the polysem command does so by itself from now on), or use float32: --set training.precision=fp32."
        )


def reduced_precisions() -> tuple[Precision, ...]:
    """Every dtype; see `reduced_precision`."""
    return tuple(reduced_precision(dtype) for dtype in get_args(DType))


def reduced_precision(dtype: DType) -> Precision:
    """The remembered answer for this machine; the first call on a machine takes seconds, in child processes."""
    return _reduced_precision(dtype, _machine_key(), cache_folder())


def is_remembered() -> bool:
    """Whether `reduced_precisions` will answer at once."""
    remembered = _read(cache_folder()).get(_machine_key(), {})
    return all(dtype in remembered for dtype in get_args(DType))


def limit_instruction_set() -> None:
    """Set `ONEDNN_MAX_CPU_ISA` where the remembered answer is that bfloat16 needs it. Call before torch is imported."""
    if ISA_VARIABLE in os.environ or "torch" in sys.modules:
        return
    content = _read(cache_folder())
    answer = _parse("bf16", content.get(_machine_key(), {}).get("bf16")) if content else None
    if answer is not None and answer.max_cpu_isa is not None:
        os.environ[ISA_VARIABLE] = answer.max_cpu_isa


@lru_cache
def _reduced_precision(dtype: DType, key: str, folder: Path) -> Precision:
    answer = _parse(dtype, _read(folder).get(key, {}).get(dtype))
    if answer is None:
        answer = _probe(dtype)
        content = _read(folder)  # again: another process may have added its answer meanwhile
        content.setdefault(key, {})[dtype] = asdict(answer)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / _FILE, json.dumps(content, indent=2) + "\n")
        except OSError:
            pass  # a cache that cannot be written: every process tries anew
    return answer


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    """The remembered answers by machine and dtype."""
    try:
        content = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: each for key, each in content.items() if isinstance(each, dict)} if isinstance(content, dict) else {}


def _parse(dtype: DType, stored: Any) -> Precision | None:
    """None for anything that `asdict` did not write: it is then tried again."""
    try:
        answer = Precision(**stored)
    except TypeError:
        return None
    return answer if answer.dtype == dtype and isinstance(answer.works, bool) else None


def _machine_key() -> str:
    """Of the processor as this system shows it, the start of the system, torch, and what limits its instructions."""
    facts = [platform.machine(), platform.node(), platform.release(), installed_version("torch") or ""]
    for path in ("/proc/cpuinfo", "/proc/sys/kernel/random/boot_id"):
        text = read_text(Path(path)) or ""
        # The clock speed changes all the time; the rest of the first processor's lines does not.
        facts += [line for line in text.partition("\n\n")[0].splitlines() if not line.startswith("cpu MHz")]
    facts += [f"{name}={os.environ.get(name)}" for name in (ISA_VARIABLE, "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _probe(dtype: DType) -> Precision:
    answer = _try(dtype, {})
    if isinstance(answer, float):
        return Precision(dtype, works=True, speedup=answer)
    isas = () if ISA_VARIABLE in os.environ else SAFE_ISAS
    safe = next((isa for isa in isas if isinstance(_try(dtype, {ISA_VARIABLE: isa}), float)), None)
    return Precision(dtype, works=False, problem=answer, max_cpu_isa=safe)


def _try(dtype: DType, environment: dict[str, str]) -> float | str:
    """The speed-up over float32, or how it failed."""
    if not sys.executable:
        return "could not be tried: this program has no Python interpreter to start"
    command, variables = [sys.executable, "-c", _TRIAL, dtype], {**os.environ, **environment}
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode < 0:
            return f"killed by {signal.Signals(-done.returncode).name}"
        if done.returncode > 0:
            return f"failed: {(done.stderr.strip().splitlines() or ['without a message'])[-1]}"
        return round(float(json.loads(done.stdout)["speedup"]), 2)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"could not be tried: {error}"
