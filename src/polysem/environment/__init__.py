"""The report of `polysem doctor`: what is installed and what is missing, with the command that installs it.

Nothing here imports torch: the report is quick, and it still appears when torch itself is broken.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from typing import Literal

from polysem._version import __version__
from polysem.environment.hardware import (
    Accelerator,
    Machine,
    TorchBuild,
    accelerators,
    machine,
    torch_build,
)
from polysem.environment.offline import Asset, OfflinePackage, offline_packages
from polysem.environment.packages import Package, install_command, required_packages
from polysem.environment.paths import search_kernels
from polysem.environment.precision import Precision, reduced_precisions

__all__ = [
    "Accelerator",
    "Asset",
    "Environment",
    "EnvironmentFinding",
    "Machine",
    "OfflinePackage",
    "Package",
    "Precision",
    "TorchBuild",
    "examine",
    "install_command",
]


@dataclass(frozen=True)
class EnvironmentFinding:
    """Something missing or broken. An "error" must be repaired; "optional" only limits what polysem can do."""

    severity: Literal["error", "optional"]
    problem: str
    remedy: str


@dataclass(frozen=True)
class Environment:
    polysem: str
    python: str
    executable: str
    platform: str
    machine: Machine
    torch: TorchBuild | None
    accelerators: tuple[Accelerator, ...]
    packages: tuple[Package, ...]
    offline: tuple[OfflinePackage, ...]
    findings: tuple[EnvironmentFinding, ...]
    search_kernels: str | None = None
    """The file of the compiled search loops; None where torch does their work."""
    precisions: tuple[Precision, ...] = ()
    """Reduced precision on the processor, as tried; empty where torch is missing."""

    @property
    def healthy(self) -> bool:
        """True when nothing found is an error."""
        return all(finding.severity != "error" for finding in self.findings)


def examine() -> Environment:
    """Look at the installation and the machine. Reads files and metadata, and tries reduced precision in a child
    process the first time on a machine."""
    build = torch_build()
    required, devices, offline = required_packages(), accelerators(build), offline_packages()
    precisions = reduced_precisions() if build is not None else ()
    return Environment(
        __version__,
        f"{platform.python_implementation()} {platform.python_version()}",
        sys.executable,
        platform.platform(),
        machine(),
        build,
        devices,
        required,
        offline,
        (
            *_package_findings(required),
            *_offline_findings(offline),
            *_accelerator_findings(devices, build),
            *_precision_findings(precisions),
        ),
        search_kernels(),
        precisions,
    )


def _package_findings(required: tuple[Package, ...]) -> list[EnvironmentFinding]:
    """One finding per group: a single command repairs all of it."""
    if not required:
        problem = "polysem runs from a folder but is not installed: its requirements are unknown."
        return [EnvironmentFinding("error", problem, install_command())]
    findings = []
    for group in dict.fromkeys(package.group for package in required):
        unmet = [package for package in required if package.group == group and package.status != "ok"]
        if not unmet:
            continue
        packages = ", ".join(
            f"{package.name} (needs {package.required}, found {package.installed or 'none'})" for package in unmet
        )
        if group == "core":
            findings.append(EnvironmentFinding("error", f"Required packages: {packages}.", install_command()))
        else:
            findings.append(EnvironmentFinding("optional", f"Extra '{group}': {packages}.", install_command(group)))
    return findings


def _offline_findings(offline: tuple[OfflinePackage, ...]) -> list[EnvironmentFinding]:
    """Absent packages are already named by their extra; here come those that are installed but not whole."""
    return [
        EnvironmentFinding(
            "error",
            f"{package.name} {package.installed} is installed but broken: "
            + "; ".join(f"{asset.problem} ({asset.path})" for asset in package.assets if asset.problem)
            + ".",
            package.remedy or "",
        )
        for package in offline
        if package.status == "broken"
    ]


def _accelerator_findings(devices: tuple[Accelerator, ...], build: TorchBuild | None) -> list[EnvironmentFinding]:
    if build is None:
        return []  # a missing torch is reported as such
    return [
        EnvironmentFinding(
            "optional",
            f"{device.kind} device found ({device.evidence}), "
            f"but the installed torch {build.version} is a {build.flavour} build.",
            "Choose the torch build for this device at https://pytorch.org/get-started/locally/",
        )
        for device in devices
        if not device.usable
    ]


def _precision_findings(precisions: tuple[Precision, ...]) -> list[EnvironmentFinding]:
    return [
        EnvironmentFinding("optional", f"{precision.dtype} on the processor: {precision.problem}.", precision.remedy)
        for precision in precisions
        if not precision.works
    ]
