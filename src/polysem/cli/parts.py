"""`polysem parts`: every registered part, what it does and its knobs."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from polysem.errors import unknown

if TYPE_CHECKING:
    from polysem.registry import PartInfo

FOLDERS = ("encoders", "pooling", "sets", "similarity", "objectives")
"""The folders that hold parts, in the order data flows through them."""


def catalogue(
    folder: Annotated[
        str | None, typer.Argument(help=f"Only this folder: {', '.join(FOLDERS)}.", show_default="all")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the parts as JSON.")] = False,
) -> None:
    """List every encoder, pooling, set predictor, similarity and objective with its knobs and their defaults."""
    if folder is not None and folder not in FOLDERS:
        raise unknown("folder of parts", folder, FOLDERS)
    found = {name: _registered(name) for name in (FOLDERS if folder is None else (folder,))}
    if as_json:
        typer.echo(json.dumps({name: [asdict(part) for part in infos] for name, infos in found.items()}, indent=2))
    else:
        _show(found)


def _registered(folder: str) -> list[PartInfo]:
    module = import_module(f"polysem.{folder}")
    return [module.describe(name) for name in module.names()]


def _show(found: dict[str, list[PartInfo]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for folder, infos in found.items():
        table = Table("Name", "What it does", "Knobs", title=folder, title_justify="left", show_lines=True)
        table.columns[0].no_wrap = True
        for part in infos:
            knobs = "\n".join(
                f"{knob.name}: {knob.type}" + (", required" if knob.default == "required" else f" = {knob.default}")
                for knob in part.knobs
            )
            # `Text`, not markup: types such as tuple[int, ...] carry square brackets.
            table.add_row(Text(part.name), Text(part.summary), Text(knobs))
        console.print(table)
