"""`polysem demo`: everything from pictures to a page to search them, in minutes."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polysem.cli.common import new_console, printable
from polysem.cli.search_commands.search import show_results
from polysem.cli.train import TrainingDisplay

if TYPE_CHECKING:
    from rich.console import Console

    from polysem.demo import Demo
    from polysem.evaluation.reports.compare import Comparison

PORT = 8000
_SHOWN = 5
"""Names of pictures that could not be read."""


def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Folder of everything that is made.")] = Path("polysem-demo"),
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Your own pictures, with captions or without.", show_default="emoji scenes"),
    ] = None,
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Open the web page at the end.")] = True,
    port: Annotated[int, typer.Option("--port", help="Of the web page; 0 takes any free one.")] = PORT,
) -> None:
    """Make data, train a single-vector model and a set model, compare them, index, and open the page to search.

    Your own pictures are indexed with the model for photographs that comes with polysem. Where 40 or more of them have
    captions, the two are trained on these and compared with it; otherwise nothing is trained.

    Run again, it goes on where it was stopped and makes nothing twice.
    """
    start = time.perf_counter()
    typer.echo(f"Everything goes to {out}. Ctrl-C stops; the same command goes on from there.")
    try:
        from polysem.demo import demo

        console = new_console()
        with DemoDisplay(console) as display:
            made = demo(out, data, progress=display, announce=display.announce, screen=display)
        show(made, data, console, time.perf_counter() - start)
        if serve:
            _serve(made, port)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. What is done is in {out}: the same command goes on from there.", err=True)
        sys.exit(130)


class DemoDisplay(TrainingDisplay):
    """Numbered steps on stdout, and progress on stderr."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console, self._step = console, 0

    def announce(self, what: str) -> None:
        from rich.markup import escape

        self.close()
        self._step += 1
        self._console.print(f"[bold]{self._step}.[/] {escape(what)}", soft_wrap=not self._console.is_terminal)


def show(made: Demo, data: Path | None, console: Console, seconds: float) -> None:
    """The comparison, the two searches, and what to try next."""
    from rich.text import Text

    from polysem.evaluation.reports.tables import as_plain, as_rich

    console.print()
    if made.comparison is not None:
        if console.is_terminal:
            console.print(as_rich(made.comparison))
        else:
            typer.echo(as_plain(made.comparison))
        typer.echo(verdict(made.comparison))
    for each in made.skipped[:_SHOWN]:
        typer.echo(f"Left out: {printable(each.what)}: {each.why}")
    if len(made.skipped) > _SHOWN:
        typer.echo(f"… and {len(made.skipped) - _SHOWN:,} more: `polysem data check {quote(data)}` lists all.")
    if made.why_not is not None:
        reason = (
            f"Nothing was trained on {made.indexed.name}: {made.why_not}. The model is {made.model}, which comes with "
            "polysem. Captions are read from captions.csv in the folder (columns image and caption), or from photo.txt "
            "beside photo.jpg."
        )
        console.print(Text(reason, style="yellow"), soft_wrap=not console.is_terminal)
    for example in made.searches:
        title = Text.assemble("\n", (f'"{example.query}"', "bold"), (f" ({example.why})", "dim"))
        console.print(title, soft_wrap=not console.is_terminal)
        show_results(example.results)
    typer.echo(f"\nDone in {seconds / 60:.1f} min. Everything is in {made.folder}. Try next:")
    for line in commands(made, data):
        typer.echo(f"  {line}")


def verdict(compared: Comparison) -> str:
    """Which of them is ahead, and whether that means anything."""
    first, second, *others = sorted(compared.rows, key=lambda row: -(row.cells["rsum"].value or 0.0))
    ahead = (first.cells["rsum"].value or 0.0) - (second.cells["rsum"].value or 0.0)
    p = second.cells["rsum"].p
    led = f"{first.model} is ahead{f' of {second.model}' if others else ''} by {ahead:.1f} RSUM"
    if p is None:
        return f"{led}."
    judged = "more than chance" if p < compared.alpha else "no more than chance"
    return f"{led}: {judged} would do (p = {p:.2g})."


def commands(made: Demo, data: Path | None) -> list[str]:
    """What to try next, ready for a shell."""
    query = "a rocket in space" if data is None else made.searches[0].query
    index = quote(made.index)
    if made.comparison is None:  # a diagnosis takes captions
        picture = made.searches[0].results.items[0].path
        last = f"polysem explain {quote(made.model)} {quote(picture)} {quote(query)} --out why.png"
    else:
        last = f"polysem diagnose {quote(made.model)} --data {quote(made.data)} --out report.html"
    return [
        f"polysem search {index} {quote(query)} --relevant",
        f"polysem serve {index}",
        f"polysem map {index} --out map.html",
        last,
    ]


def quote(value: object) -> str:
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

    serve(made.index, Settings(port=_free(port)), announce=announce)


def _free(port: int) -> int:
    """The port, or any free one where nobody asked for this one and something else has it."""
    from polysem.errors import InputError
    from polysem.server.run import bind_socket
    from polysem.server.settings import Settings

    try:
        bind_socket(Settings(port=port)).close()
    except InputError:
        if port == PORT:
            return 0
        raise
    return port
