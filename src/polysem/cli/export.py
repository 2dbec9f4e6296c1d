"""`polysem export`: a model for runtimes other than torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polysem.cli.progress import stages
from polysem.errors import unknown

if TYPE_CHECKING:
    from polysem.export import Export

FORMATS = ("onnx",)


def export_command(
    model: Annotated[str, typer.Argument(help="A model folder, or its name.")],
    out: Annotated[Path, typer.Option(help="Folder to write. An earlier export there is replaced.")],
    format_: Annotated[str, typer.Option("--format", help=f"What to write: {', '.join(FORMATS)}.")] = "onnx",
    tolerance: Annotated[
        float, typer.Option(help="Largest difference from the model that a number of a vector may have.")
    ] = 1e-4,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write both towers and the similarity as ONNX, with a description of what goes in and comes out.

    onnxruntime runs what was written, and its numbers are compared with the model's: on batches of several sizes, items
    of several lengths, together and alone. Where they differ, nothing is left behind.
    """
    if format_ not in FORMATS:
        raise unknown("export format", format_, FORMATS)
    from polysem.export import export_onnx
    from polysem.models import load

    with stages(quiet=as_json) as advance:
        exported = export_onnx(load(model), out, tolerance, advance)
    if as_json:
        agreements = {name: asdict(found) for name, found in exported.agreements.items()}
        summary = {"out": str(exported.out), "files": exported.files, "checked": agreements}
        typer.echo(json.dumps({**summary, "max_difference": exported.difference}, indent=2))
    else:
        _show(exported)


def _show(exported: Export) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("File", "MB", "Differs from the model by", "Alone from its batch by", title=str(exported.out))
    for name, size in exported.files.items():
        found = exported.agreements.get(name.removesuffix(".onnx")) if name.endswith(".onnx") else None
        towers = found is not None and name != "similarity.onnx"
        table.add_row(
            name,
            f"{size / 1e6:.1f}",
            "" if found is None else f"{found.difference:.1e} ({found.batches} batches)",
            f"{found.alone:.1e}" if found is not None and towers else "",
        )
    console.print(table)
    console.print(f"Largest difference: {exported.difference:.1e}.")
