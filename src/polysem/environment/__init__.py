"""The report of `polysem doctor`: what is installed and what is missing, with the command that installs it.

Nothing here imports torch: the report is quick, and it still appears when torch itself is broken.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from polysem._version import __version__
from polysem.environment.default_model import ModelChoice, choose_model
from polysem.environment.hardware import Accelerator, Machine, TorchBuild, accelerators, machine, torch_build
from polysem.environment.packages import (
    Asset,
    OfflinePackage,
    Package,
    install_command,
    offline_packages,
    required_packages,
)
from polysem.environment.paths import search_kernels
from polysem.environment.precision import Precision, reduced_precisions

__all__ = [
    "Accelerator",
    "Asset",
    "Environment",
    "EnvironmentFinding",
    "Machine",
    "ModelChoice",
    "OfflinePackage",
    "Package",
    "Precision",
    "TorchBuild",
    "choose_model",
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
    findings: tuple[EnvironmentFinding, ...] = ()
    search_kernels: str | None = None
    """The file of the compiled search loops; None where torch does their work."""
    precisions: tuple[Precision, ...] = ()
    """Reduced precision on the processor, as tried; empty where torch is missing."""
    model: ModelChoice | None = None
    """What `polysem index` takes where no model is named."""

    @property
    def healthy(self) -> bool:
        """True when nothing found is an error."""
        return all(finding.severity != "error" for finding in self.findings)


def examine() -> Environment:
    """Look at the installation and the machine. Reads files and metadata, and tries reduced precision in a child
    process the first time on a machine."""
    build = torch_build()
    environment = Environment(
        __version__,
        f"{platform.python_implementation()} {platform.python_version()}",
        sys.executable,
        platform.platform(),
        machine(),
        build,
        accelerators(build),
        required_packages(),
        offline_packages(),
        search_kernels=search_kernels(),
        precisions=reduced_precisions() if build is not None else (),
        model=choose_model(),
    )
    return replace(environment, findings=tuple(_list_findings(environment)))


def _list_findings(environment: Environment) -> Iterator[EnvironmentFinding]:
    required, build = environment.packages, environment.torch
    if not required:
        problem = "polysem runs from a folder but is not installed: its requirements are unknown."
        yield EnvironmentFinding("error", problem, install_command())
    for group in dict.fromkeys(package.group for package in required):  # a single command repairs all of a group
        unmet = ", ".join(
            f"{package.name} (needs {package.required}, found {package.installed or 'none'})"
            for package in required
            if package.group == group and package.status != "ok"
        )
        if unmet and group == "core":
            yield EnvironmentFinding("error", f"Required packages: {unmet}.", install_command())
        elif unmet:
            yield EnvironmentFinding("optional", f"Extra '{group}': {unmet}.", install_command(group))
    for package in environment.offline:
        if package.status == "broken":  # absent ones are named by their extra
            problems = "; ".join(f"{asset.problem} ({asset.path})" for asset in package.assets if asset.problem)
            problem = f"{package.name} {package.installed} is installed but broken: {problems}."
            yield EnvironmentFinding("error", problem, package.remedy or "")
    for device in environment.accelerators:
        if build is not None and not device.usable:  # a missing torch is reported as such
            problem = f"{device.kind} device found ({device.evidence}), but the installed torch {build.version} is a "
            remedy = "Choose the torch build for this device at https://pytorch.org/get-started/locally/"
            yield EnvironmentFinding("optional", f"{problem}{build.flavour} build.", remedy)
    better = None if environment.model is None else environment.model.better
    if better is not None:
        problem = f"{better.model}, the better model for photos, needs the weights {', '.join(better.weights)}."
        yield EnvironmentFinding("optional", problem, better.remedy)
    for precision in environment.precisions:
        if not precision.works:
            problem = f"{precision.dtype} on the processor: {precision.problem}."
            yield EnvironmentFinding("optional", problem, precision.remedy)
