"""The machine as seen without importing torch: processor, memory, accelerators, torch's own build."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from polysem.environment.packages import installed_version

# What decides which kernels and number formats are worth using; the rest of a processor's list is noise here.
_EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")

TorchFlavour = Literal["cpu", "cuda", "rocm", "xpu", "unknown"]


@dataclass(frozen=True)
class Machine:
    """None stands for "could not be read", never for zero or no."""

    processor: str
    cores: int | None
    usable_cores: int | None
    memory_bytes: int | None
    vector_extensions: tuple[str, ...] | None


@dataclass(frozen=True)
class TorchBuild:
    version: str
    flavour: TorchFlavour
    toolkit: str | None
    """The version of CUDA, ROCm or XPU the build was made with."""


@dataclass(frozen=True)
class Accelerator:
    """A device found on the machine. `usable` says whether the installed torch was built for it."""

    kind: Literal["nvidia", "amd", "apple"]
    evidence: str
    usable: bool


def machine(root: Path = Path("/")) -> Machine:
    """The processor, and the memory, which is less inside a limited container. root: where /proc and /sys are."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    sizes = []
    if total := re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc" / "meminfo") or "", re.MULTILINE):
        sizes.append(int(total[1]) * 1024)
    elif "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = (read_text(root / "sys" / "fs" / "cgroup" / "memory.max") or "").strip()
    if limit.isdigit():
        sizes.append(int(limit))
    # x86 calls the line "flags", ARM "Features".
    flags = r"^(?:flags|Features)\s*:\s*(.*)$"
    line = re.search(flags, read_text(root / "proc" / "cpuinfo") or "", re.MULTILINE)
    extensions = None if line is None else tuple(name for name in _EXTENSIONS if name in line[1].split())
    return Machine(platform.machine(), os.cpu_count(), usable, min(sizes, default=None), extensions)


def torch_build() -> TorchBuild | None:
    """What torch says of itself in `torch/version.py`, read as text; None when torch is not installed."""
    installed = installed_version("torch")
    if installed is None:
        return None
    text = read_text(Path(str(metadata.distribution("torch").locate_file("torch/version.py"))))
    if text is None:
        return TorchBuild(installed, "unknown", None)
    stated = dict(re.findall(r"^(__version__|cuda|hip|xpu)\b[^=\n]*=\s*'([^']+)'", text, re.MULTILINE))
    version = stated.get("__version__", installed)
    flavours: dict[str, TorchFlavour] = {"cuda": "cuda", "hip": "rocm", "xpu": "xpu"}
    toolkit = next((key for key in flavours if key in stated), "")
    return TorchBuild(version, flavours.get(toolkit, "cpu"), stated.get(toolkit))


def accelerators(build: TorchBuild | None, root: Path = Path("/")) -> tuple[Accelerator, ...]:
    """The devices that leave a trace: files under `root`/dev, driver tools on PATH, the platform itself."""
    flavour = build.flavour if build else None
    nvidia = [f"/dev/{path.name}" for path in sorted((root / "dev").glob("nvidia[0-9]*"))]
    if tool := shutil.which("nvidia-smi"):
        nvidia.append(tool)
    apple = (platform.system(), platform.machine()) == ("Darwin", "arm64")
    devices = (
        Accelerator("nvidia", ", ".join(nvidia), flavour == "cuda"),
        Accelerator("amd", "/dev/kfd" if (root / "dev" / "kfd").exists() else "", flavour == "rocm"),
        # Every macOS build of torch carries MPS; there is no separate flavour to look for.
        Accelerator("apple", "macOS on arm64" if apple else "", build is not None),
    )
    return tuple(device for device in devices if device.evidence)


def read_text(path: Path) -> str | None:
    """None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
