"""`polysem demo`: everything from pictures to a page to search them, in minutes."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from polysem.demo import Demo
    from polysem.evaluation.reports.compare import Comparison

PORT = 8000
QUIET_SECONDS = 30.0
"""Between two lines where there is no terminal to draw a bar on, such as a log file."""
_NAMED = 5
"""Pictures that could not be read, of those that are told."""


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
        from rich.console import Console

        from polysem.demo import demo

        console = Console(highlight=False)
        with Steps(console) as steps:
            made = demo(out, data, progress=steps.progress, announce=steps.announce, screen=steps)
        show(made, data, console, time.perf_counter() - start)
        if serve:
            _serve(made, port)
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. What is done is in {out}: the same command goes on from there.", err=True)
        sys.exit(130)


class Steps:
    """Numbered steps on stdout and one bar at a time on stderr: two that draw at once spoil each other."""

    def __init__(self, console: Console) -> None:
        from rich.console import Console

        self._console, self._errors = console, Console(stderr=True)
        self._step, self._said = 0, time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._what = ""

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def announce(self, what: str) -> None:
        from rich.markup import escape

        self._close()
        self._step += 1
        self._console.print(f"[bold]{self._step}.[/] {escape(what)}", soft_wrap=not self._console.is_terminal)

    def progress(self, stage: str, done: int, of: int) -> None:
        if not self._errors.is_terminal:
            if time.monotonic() - self._said >= QUIET_SECONDS:
                self._said = time.monotonic()
                typer.echo(f"   {stage}: {done:,} of {of:,}", err=True)
            return
        if stage != self._what:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._close()
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=self._errors, transient=True)
            self._task, self._what = self._bar.add_task(f"   {stage}", total=of), stage
            self._bar.start()
        self._bar.update(self._task, completed=done, total=of)

    # ------------------------------------------------------------------------------------ what `train` asks a screen

    def features(self, what: str, done: int, total: int) -> None:
        self.progress(f"features of {what}", done, total)

    def begin(self, title: str, total: int, step: int, best: dict[str, Any] | None) -> Any:
        from polysem.training.monitoring.display import Live

        self._close()
        live = Live(title, total)
        if step:
            live.resumed(step, best)
        return live

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._what = None, ""


def show(made: Demo, data: Path | None, console: Console, seconds: float) -> None:
    """The comparison, the two searches, and what to try next."""
    from rich.text import Text

    from polysem.cli.common import printable
    from polysem.cli.search_commands.search import show_results
    from polysem.evaluation.reports.tables import as_plain, as_rich

    console.print()
    if made.comparison is not None:
        if console.is_terminal:
            console.print(as_rich(made.comparison))
        else:
            typer.echo(as_plain(made.comparison))
        typer.echo(verdict(made.comparison))
    for each in made.skipped[:_NAMED]:
        typer.echo(f"Left out: {printable(each.what)}: {each.why}")
    if len(made.skipped) > _NAMED:
        typer.echo(f"… and {len(made.skipped) - _NAMED:,} more: `polysem data check {quoted(data)}` lists all.")
    if made.why_not is not None:
        told = (
            f"Nothing was trained on {made.indexed.name}: {made.why_not}. The model is {made.model}, which comes with "
            "polysem. Captions are read from captions.csv in the folder (columns image and caption), or from photo.txt "
            "beside photo.jpg."
        )
        console.print(Text(told, style="yellow"), soft_wrap=not console.is_terminal)
    for found in made.searches:
        title = Text.assemble("\n", (f'"{found.query}"', "bold"), (f" ({found.why})", "dim"))
        console.print(title, soft_wrap=not console.is_terminal)
        show_results(found.results)
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
    index = quoted(made.index)
    if made.comparison is None:  # a diagnosis takes captions
        picture = made.searches[0].results.items[0].path
        last = f"polysem explain {quoted(made.model)} {quoted(picture)} {quoted(query)} --out why.png"
    else:
        last = f"polysem diagnose {quoted(made.model)} --data {quoted(made.data)} --out report.html"
    return [
        f"polysem search {index} {quoted(query)} --relevant",
        f"polysem serve {index}",
        f"polysem map {index} --out map.html",
        last,
    ]


def quoted(given: object) -> str:
    return shlex.quote(str(given))


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
