"""Which of polysem's requirements are installed, read from package metadata: nothing is imported."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

PackageStatus = Literal["ok", "missing", "unsuitable"]


@dataclass(frozen=True)
class Package:
    """One requirement of polysem. `group` is "core" or the extra that asks for it."""

    name: str
    group: str
    required: str
    installed: str | None
    status: PackageStatus


def required_packages() -> tuple[Package, ...]:
    """Every requirement of the installed polysem, core first; empty when polysem's own metadata is absent."""
    try:
        distribution = metadata.distribution("polysem")
    except metadata.PackageNotFoundError:
        return ()
    checked = [_check(Requirement(line)) for line in distribution.requires or ()]
    applicable = [package for package in checked if package is not None]
    return tuple(sorted(applicable, key=lambda package: (package.group != "core", package.group, package.name)))


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None. Metadata without a version counts as absent."""
    try:
        # `Distribution.version` raises, warns or answers None on damaged metadata, depending on the Python.
        return metadata.distribution(name).metadata.json.get("version") or None  # type: ignore[return-value]
    except metadata.PackageNotFoundError:
        return None


def install_command(extra: str | None = None, *, here: Path | None = None) -> str:
    """The command that installs polysem, or one of its extras, the way this copy was installed.

    A source checkout installs itself with its tested versions; any other copy comes from the package index.
    """
    checkout, brackets = source_checkout(), f"[{extra}]" if extra else ""
    if checkout is None:
        return f"pip install {shlex.quote('polysem' + brackets)}"
    if checkout == (here or Path.cwd()).resolve():
        return f"pip install -e {shlex.quote('.' + brackets)} -c constraints.txt"
    constraints = shlex.quote(str(checkout / "constraints.txt"))
    return f"pip install -e {shlex.quote(str(checkout) + brackets)} -c {constraints}"


def source_checkout() -> Path | None:
    """The root of the source tree this code runs from, or None when it was installed from a wheel."""
    root = Path(__file__).resolve().parents[3]
    return root if all((root / name).is_file() for name in ("pyproject.toml", "constraints.txt")) else None


def _check(requirement: Requirement) -> Package | None:
    """None where the requirement's marker rules it out on this machine."""
    group = _group(requirement)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": "" if group == "core" else group}):
        return None
    installed = installed_version(requirement.name)
    suits = installed is not None and _suits(requirement, installed)
    status: PackageStatus = "ok" if suits else "missing" if installed is None else "unsuitable"
    return Package(requirement.name, group, str(requirement.specifier) or "any", installed, status)


def _group(requirement: Requirement) -> str:
    """The extra named in a marker such as `extra == "offline"`."""
    _, _, after = str(requirement.marker or "").partition('extra == "')
    return after.partition('"')[0] or "core"


def _suits(requirement: Requirement, installed: str) -> bool:
    try:
        # A nightly build the user chose on purpose is judged by its number, not refused as a pre-release.
        return requirement.specifier.contains(Version(installed), prereleases=True)
    except InvalidVersion:
        return False
