"""`polysem demo`: everything from pictures to a page to search them, in minutes."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from polysem.cli.options import option
from polysem.cli.output import escape_name, exit_on_interrupt, new_console, print_first
from polysem.cli.search import show_results
from polysem.cli.train import TrainingDisplay
from polysem.environment.paths import SHIPPED
from polysem.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from polysem.demo import Demo
    from polysem.evaluation.reports.compare import Comparison

PORT = 8000
_SHOWN = 5
"""Names of pictures that could not be read."""


def demo_command(
    out: Annotated[Path, Option(help="Folder of everything that is made.")] = Path("polysem-demo"),
    data: Annotated[Path | None, option("Your own pictures, with captions or without.", default="emoji scenes")] = None,
    serve: Annotated[bool, Option("--serve/--no-serve", help="Open the web page at the end.")] = True,
    port: Annotated[int, Option(help="Of the web page; 0 takes any free one.")] = PORT,
) -> None:
    """Make data, train single-vector models and a set model, compare them, index, and open the page to search.

    Your own pictures are indexed with the best model on this machine, as `polysem doctor` names it. Where 40 or more of
    them have captions, the others are trained on these and compared with it; otherwise nothing is trained.

    Run again, it goes on where it was stopped and makes nothing twice.
    """
    start = time.perf_counter()
    typer.echo(f"Everything goes to {out}. Ctrl-C stops; the same command goes on from there.")
    with exit_on_interrupt(f"Stopped. What is done is in {out}: the same command goes on from there."):
        from polysem.demo import demo

        console = new_console()
        with DemoDisplay(console) as display:
            made = demo(out, data, progress=display, announce=display.announce, screen=display)
        _show(made, data, console, time.perf_counter() - start)
        if serve:
            _serve(made, port)


class DemoDisplay(TrainingDisplay):
    """Numbered steps on stdout, and progress on stderr."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console, self._step = console, 0

    def announce(self, what: str) -> None:
        from rich.text import Text

        self.close()
        self._step += 1
        text = Text.assemble((f"{self._step}.", "bold"), f" {what}")
        self._console.print(text, soft_wrap=not self._console.is_terminal)


def _show(made: Demo, data: Path | None, console: Console, seconds: float) -> None:
    """The comparison, the two searches, and what to try next."""
    from rich.text import Text

    from polysem.evaluation.reports.tables import as_plain, as_rich

    console.print()
    wrap = not console.is_terminal
    if made.comparison is not None:
        if console.is_terminal:
            console.print(as_rich(made.comparison))
        else:
            typer.echo(as_plain(made.comparison))
        typer.echo(describe_lead(made.comparison))
    skipped = [f"Left out: {escape_name(each.what)}: {each.why}" for each in made.skipped]
    print_first(skipped, _SHOWN, f"`polysem data check {_quote(data)}` lists all.")
    if made.why_not is not None:
        source = (
            "which comes with polysem"
            if str(made.model) in SHIPPED
            else "the best on this machine (`polysem doctor` says why)"
        )
        console.print(
            f"Nothing was trained on {made.indexed.name}: {made.why_not}. The model is {made.model}, {source}. "
            "Captions are read from captions.csv in the folder (columns image and caption), or from photo.txt beside "
            "photo.jpg.",
            style="yellow",
            soft_wrap=wrap,
        )
    for example in made.searches:
        title = Text.assemble("\n", (f'"{example.query}"', "bold"), (f" ({example.why})", "dim"))
        console.print(title, soft_wrap=wrap)
        show_results(example.results)
    typer.echo(f"\nDone in {seconds / 60:.1f} min. All files are in {made.folder}. Try next:")
    query = "a rocket in space" if data is None else made.searches[0].query
    typer.echo(f"  polysem search {_quote(made.index)} {_quote(query)} --relevant")
    typer.echo(f"  polysem serve {_quote(made.index)}")
    typer.echo(f"  polysem map {_quote(made.index)} --out map.html")
    if made.comparison is None:  # a diagnosis takes captions
        picture = made.searches[0].results.items[0].path
        typer.echo(f"  polysem explain {_quote(made.model)} {_quote(picture)} {_quote(query)} --out why.png")
    else:
        typer.echo(f"  polysem diagnose {_quote(made.model)} --data {_quote(made.data)} --out report.html")


def describe_lead(comparison: Comparison) -> str:
    """Which of them is ahead of which others, by how much, and whether that means anything."""
    first, *others = sorted(comparison.rows, key=lambda row: -(row.cells["rsum"].value or 0.0))
    leads = []
    for other in others:
        cell = other.cells["rsum"]
        lead = f"of {other.model} by {(first.cells['rsum'].value or 0.0) - (cell.value or 0.0):.1f} RSUM"
        if cell.p is not None:
            lead += f" ({'more' if cell.p < comparison.alpha else 'no more'} than chance would do, p = {cell.p:.2g})"
        leads.append(lead)
    listed = ", ".join(leads[:-1]) + " and " + leads[-1] if len(leads) > 1 else "".join(leads)
    return f"{first.model} is ahead {listed}."


def _quote(value: object) -> str:
    """For a shell."""
    return shlex.quote(str(value))


def _serve(made: Demo, port: int) -> None:
    import webbrowser

    from polysem.server.run import serve
    from polysem.server.settings import Settings

    def announce(address: str) -> None:
        typer.echo(f"\nThe page: {address} (Ctrl-C ends it)")
        # Without a display, what opens is a browser for terminals, and takes this one.
        if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            webbrowser.open(address)

    serve(made.index, Settings(port=find_port(port)), announce=announce)


def find_port(port: int) -> int:
    """The port, or any free one where nobody asked for this one and something else has it."""
    from polysem.server.run import bind_socket
    from polysem.server.settings import Settings

    try:
        bind_socket(Settings(port=port)).close()
    except InputError:
        if port == PORT:
            return 0
        raise
    return port
