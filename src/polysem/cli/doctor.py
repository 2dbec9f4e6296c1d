"""`polysem doctor`: what is installed, what was found, what is missing and how to get it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from polysem.cli.common import AsJson, new_console, print_facts, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from polysem.environment import Asset, Environment, Precision

_STYLES = {"ok": "green", "missing": "yellow", "optional": "yellow"}


def doctor_command(as_json: AsJson = False) -> None:
    """Report what is installed, which weights and accelerators are found, and how to get what is missing.

    The exit code is 1 when something required is missing or something installed is broken, 0 otherwise.
    """
    environment = _examine()
    if as_json:
        print_json({**asdict(environment), "healthy": environment.healthy})
    else:
        _show(environment)
    if not environment.healthy:
        raise typer.Exit(1)


def _examine() -> Environment:
    """The report; what takes seconds the first time on a machine is announced on stderr."""
    from polysem.environment import examine
    from polysem.environment.precision import is_remembered

    if is_remembered():
        return examine()
    from rich.console import Console

    with Console(stderr=True).status("Trying reduced precision on this processor, once per machine …"):
        return examine()


def _show(environment: Environment) -> None:
    console = new_console()
    _show_machine(environment)
    if environment.packages:
        console.print(_packages(environment))
    console.print(_offline(environment))
    # Not wrapped by the console, here and below: paths and commands must survive being copied.
    for package in environment.offline:
        for asset in package.assets:
            console.print(_place(asset), soft_wrap=True)
    if not environment.findings:
        console.print("[green]Everything is here.[/green]")
    for finding in environment.findings:
        console.print(f"{_status(finding.severity)}: {_plain(finding.problem)}")
        console.print(f"  {_plain(finding.remedy)}", soft_wrap=True)


def _show_machine(environment: Environment) -> None:
    machine, torch = environment.machine, environment.torch
    extensions = machine.vector_extensions
    rows = [
        ("Python", f"{environment.python} ({environment.executable})"),
        ("Platform", environment.platform),
        ("Processor", f"{machine.processor}, {machine.usable_cores} of {machine.cores} cores usable"),
        ("Vector extensions", "unknown" if extensions is None else ", ".join(extensions) or "none"),
        ("Memory", "unknown" if machine.memory_bytes is None else f"{machine.memory_bytes / 1e9:.1f} GB"),
        ("torch", "missing" if torch is None else f"{torch.version} ({torch.flavour} build) {torch.toolkit or ''}"),
        ("Search loops", "compiled" if environment.search_kernels else "torch's: no compiler at install"),
    ]
    if environment.precisions:
        rows.append(("Reduced precision", "\n".join(_precision(each) for each in environment.precisions)))
    devices = "; ".join(
        f"{device.kind} ({device.evidence}){'' if device.usable else ', not usable with this torch'}"
        for device in environment.accelerators
    )
    rows.append(("Accelerators", devices or "none found: work runs on the processor"))
    print_facts(f"polysem {environment.polysem}", rows)


def _precision(precision: Precision) -> str:
    if not precision.works:
        return f"{precision.dtype}: {precision.problem} (see below)"
    worth = "faster than" if precision.pays else "no faster than"
    return f"{precision.dtype}: works, {worth} float32 ({precision.speedup:g}×)"


def _packages(environment: Environment) -> RenderableType:
    from rich.table import Table

    shown_below = {package.name for package in environment.offline}
    table = Table("Package", "Asked for by", "Needs", "Found", "", title="Packages", title_justify="left")
    for package in environment.packages:
        if package.name not in shown_below:
            found = package.installed or "-"
            table.add_row(package.name, package.group, package.required, found, _status(package.status))
    return table


def _offline(environment: Environment) -> RenderableType:
    from rich.table import Table

    table = Table("Package", "Gives", "Found", "", title="Weights and pictures", title_justify="left")
    table.columns[0].no_wrap = True
    for package in environment.offline:
        table.add_row(package.name, package.provides, package.installed or "-", _status(package.status))
    return table


def _place(asset: Asset) -> str:
    size = f"{asset.bytes / 1e6:.1f} MB"
    return f"{_plain(asset.path)} ({f'{asset.files} files, ' if asset.files > 1 else ''}{size})"


def _status(word: str) -> str:
    style = _STYLES.get(word, "bold red")
    return f"[{style}]{word}[/{style}]"


def _plain(text: str) -> str:
    """Text that must not be read as console markup: paths and extras carry square brackets."""
    from rich.markup import escape

    return escape(text)
