"""`polysem demo`: everything from pictures to a page to search them, in minutes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from polysem.demo import Demo


def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Folder of everything that is made.")] = Path("polysem-demo"),
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Your own pictures, with captions or without.", show_default="emoji scenes"),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Open the web page at the end.")] = True,
    port: Annotated[int, typer.Option("--port", help="Of the web page; 0 takes any free one.")] = 8000,
) -> None:
    """Make data, train a single-vector model and a set model, compare them, index, and open the page to search.

    Run again, it goes on where it was stopped and makes nothing twice.
    """
    from rich.console import Console

    from polysem.cli.progress import stages
    from polysem.cli.train import Screen
    from polysem.demo import demo

    console, start, step = Console(highlight=False), time.perf_counter(), 0

    def announce(what: str) -> None:
        nonlocal step
        step += 1
        console.print(f"[bold]{step}.[/] {what}", soft_wrap=True)

    try:
        with stages() as progress:
            made = demo(out, data, progress=progress, announce=announce, screen=Screen())
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. What is done is in {out}: the same command goes on from there.", err=True)
        sys.exit(130)
    show(made, console, time.perf_counter() - start)
    if serve:
        _serve(made, port)


def show(made: Demo, console: Console, seconds: float) -> None:
    """The comparison, the two searches, and what to try next."""
    from polysem.cli import search
    from polysem.evaluation.reports.tables import as_plain, as_rich

    console.print()
    if console.is_terminal:
        console.print(as_rich(made.comparison))
    else:
        typer.echo(as_plain(made.comparison))
    if not made.own_model:
        console.print(
            f"{made.indexed.name} has too few captions to learn from, so the model learned from drawn scenes alone. "
            "Expect little of it on photographs; captions in captions.csv make it learn from yours.",
            style="yellow",
        )
    for found in made.searches:
        console.print(f'\n[bold]"{found.query}"[/] [dim]({found.why})[/]', soft_wrap=True)
        search.show(found.results)
    console.print(f"\nDone in {seconds / 60:.1f} min. Everything is in {made.folder}. Try next:", soft_wrap=True)
    for line in (
        f'polysem search {made.index} "a dog under a tree" --relevant',
        f"polysem serve {made.index}",
        f"polysem diagnose {made.folder}/small-dive --data {made.folder}/scenes --out report.html",
        f"polysem map {made.index} --out map.html",
    ):
        console.print(f"  {line}", soft_wrap=True)


def _serve(made: Demo, port: int) -> None:
    import webbrowser

    from polysem.server.run import serve
    from polysem.server.settings import Settings

    def announce(address: str) -> None:
        typer.echo(f"\nThe page: {address} (Ctrl-C ends it)")
        webbrowser.open(address)

    serve(made.index, Settings(port=port), announce=announce)
