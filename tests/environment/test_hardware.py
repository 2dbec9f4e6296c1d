from __future__ import annotations

import platform
from pathlib import Path

import pytest

from fake_packages import install
from polysem.environment import hardware
from polysem.environment.hardware import TorchBuild, accelerators, machine, torch_build

CPU = TorchBuild("2.13.0+cpu", "cpu", None)
CUDA = TorchBuild("2.13.0", "cuda", "13.0")
VERSION_FILE = "from typing import Optional\n__version__ = '{}'\ncuda: Optional[str] = {}\nhip: Optional[str] = {}\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without devices, driver tools or Apple silicon, whatever this one has."""
    monkeypatch.setattr(hardware.shutil, "which", lambda tool: None)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "flavour", "toolkit"),
    [
        ("2.13.0+cpu", "None", "None", "cpu", None),
        ("2.13.0", "'13.0'", "None", "cuda", "13.0"),
        ("2.13.0+rocm7.1", "None", "'7.1.25424'", "rocm", "7.1.25424"),
    ],
)
def test_the_build_of_torch_is_read_from_its_version_file(
    site: Path, version: str, cuda: str, hip: str, flavour: str, toolkit: str | None
) -> None:
    install(site, "torch", version, {"torch/version.py": VERSION_FILE.format(version, cuda, hip).encode()})
    build = torch_build()
    assert build is not None
    assert (build.version, build.flavour, build.toolkit) == (version, flavour, toolkit)


def test_torch_without_its_version_file_has_an_unknown_build(site: Path) -> None:
    install(site, "torch", "2.13.0")
    assert torch_build() == TorchBuild("2.13.0", "unknown", None)


def test_absent_torch_has_no_build(site: Path) -> None:
    assert torch_build() is None


def test_a_machine_without_devices_reports_no_accelerator(root: Path) -> None:
    assert accelerators(CUDA, root) == ()


def test_an_nvidia_device_is_usable_only_with_a_cuda_build(root: Path) -> None:
    (root / "dev" / "nvidia0").touch()
    (root / "dev" / "nvidiactl").touch()
    (with_cuda,) = accelerators(CUDA, root)
    assert (with_cuda.kind, with_cuda.evidence, with_cuda.usable) == ("nvidia", "/dev/nvidia0", True)
    assert [device.usable for device in accelerators(CPU, root)] == [False]
    assert [device.usable for device in accelerators(None, root)] == [False]


def test_an_nvidia_driver_is_found_by_its_tool_where_no_device_file_exists(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware.shutil, "which", lambda tool: f"/drivers/{tool}")
    assert [device.evidence for device in accelerators(CUDA, root)] == ["/drivers/nvidia-smi"]


def test_an_amd_device_is_usable_only_with_a_rocm_build(root: Path) -> None:
    (root / "dev" / "kfd").touch()
    assert [(device.kind, device.usable) for device in accelerators(CUDA, root)] == [("amd", False)]
    rocm = TorchBuild("2.13.0+rocm7.1", "rocm", "7.1")
    assert [(device.kind, device.usable) for device in accelerators(rocm, root)] == [("amd", True)]


def test_apple_silicon_is_known_by_its_platform(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert [(device.kind, device.usable) for device in accelerators(CPU, root)] == [("apple", True)]
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert accelerators(CPU, root) == ()


@pytest.mark.parametrize(
    ("cpuinfo", "extensions"),
    [
        ("flags\t\t: fpu avx avx2 fma\n", ("avx2",)),
        ("flags : avx2 avx512f amx_bf16\n", ("avx2", "avx512f", "amx_bf16")),
        ("Features\t: fp asimd bf16\n", ("asimd", "bf16")),
        ("flags : fpu\n", ()),
        ("model name : something\n", None),
        (None, None),
    ],
)
def test_vector_extensions_are_read_or_admitted_to_be_unknown(
    root: Path, cpuinfo: str | None, extensions: tuple[str, ...] | None
) -> None:
    if cpuinfo is not None:
        (root / "proc" / "cpuinfo").write_text(cpuinfo)
    assert machine(root).vector_extensions == extensions


def test_memory_is_the_machines_or_the_containers_whichever_is_less(root: Path) -> None:
    (root / "proc" / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 10 kB\n")
    assert machine(root).memory_bytes == 1_024_000
    limit = root / "sys" / "fs" / "cgroup" / "memory.max"
    limit.parent.mkdir(parents=True)
    for content, expected in (("max\n", 1_024_000), ("500000\n", 500_000), ("9000000000\n", 1_024_000)):
        limit.write_text(content)
        assert machine(root).memory_bytes == expected


def test_the_cores_of_this_machine_are_counted() -> None:
    found = machine()
    assert found.cores is not None
    assert found.usable_cores is not None
    assert 1 <= found.usable_cores <= found.cores
