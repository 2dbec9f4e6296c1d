"""`polysem doctor`: what is installed, what was found, what is missing and how to get it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from polysem.cli.options import AsJson
from polysem.cli.output import new_console, new_table, print_facts, print_json
from polysem.environment.default_model import VARIABLE

if TYPE_CHECKING:
    from rich.text import Text

    from polysem.environment import Environment

_STYLES = {"ok": "green", "missing": "yellow", "optional": "yellow"}


def doctor_command(as_json: AsJson = False) -> None:
    """Report what is installed, which weights and accelerators are found, and how to get what is missing.

    The exit code is 1 when something required is missing or something installed is broken, 0 otherwise.
    """
    from polysem.environment import examine
    from polysem.environment.precision import is_remembered

    waiting = "Trying reduced precision on this processor, once per machine …"
    with nullcontext() if is_remembered() else new_console(stderr=True).status(waiting):
        environment = examine()
    if as_json:
        print_json({**asdict(environment), "healthy": environment.healthy})
    else:
        _show(environment)
    if not environment.healthy:
        raise typer.Exit(1)


def _show(environment: Environment) -> None:
    from rich.text import Text

    console = new_console()
    print_facts(f"polysem {environment.polysem}", _list_facts(environment))
    if environment.packages:
        offline = {package.name for package in environment.offline}
        table = new_table("Packages", "Package", "Asked for by", "Needs", "Found", "")
        for each in environment.packages:
            if each.name not in offline:
                table.add_row(each.name, each.group, each.required, each.installed or "-", _status(each.status))
        console.print(table)
    table = new_table("Weights and pictures", "Package", "Gives", "Found", "")
    table.columns[0].no_wrap = True
    for package in environment.offline:
        table.add_row(package.name, package.provides, package.installed or "-", _status(package.status))
    console.print(table)
    # Not wrapped by the console, here and below: paths and commands must survive being copied.
    for asset in (asset for package in environment.offline for asset in package.assets):
        files = f"{asset.files} files, " if asset.files > 1 else ""
        console.print(f"{asset.path} ({files}{asset.bytes / 1e6:.1f} MB)", soft_wrap=True)
    if not environment.findings:
        console.print("Nothing is missing.", style="green")
    for finding in environment.findings:
        console.print(Text.assemble(_status(finding.severity), f": {finding.problem}"))
        console.print(f"  {finding.remedy}", soft_wrap=True)


def _list_facts(environment: Environment) -> list[tuple[str, str]]:
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
    if environment.model is not None:
        choice = (
            f"{environment.model.name}: {environment.model.why}\nAnother: polysem index --model NAME, or {VARIABLE}"
        )
        rows.append(("Model for photos", choice))
    if environment.precisions:
        lines = []
        for each in environment.precisions:
            verdict = f"{each.problem} (see below)"
            if each.works:
                verdict = f"works, {'faster' if each.pays else 'no faster'} than float32 ({each.speedup:g}×)"
            lines.append(f"{each.dtype}: {verdict}")
        rows.append(("Reduced precision", "\n".join(lines)))
    devices = "; ".join(
        f"{device.kind} ({device.evidence}){'' if device.usable else ', not usable with this torch'}"
        for device in environment.accelerators
    )
    return [*rows, ("Accelerators", devices or "none found: work runs on the processor")]


def _status(word: str) -> Text:
    from rich.text import Text

    return Text(word, style=_STYLES.get(word, "bold red"))
