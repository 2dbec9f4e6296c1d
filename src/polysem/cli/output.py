"""What commands print: JSON, tables and progress bars."""

from __future__ import annotations

import json
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(content: Any, indent: int | None = 2) -> None:
    text = json.dumps(content, indent=indent, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:  # file names that are not Unicode
        text = json.dumps(content, indent=indent, default=str)
    typer.echo(text)


def new_console(stderr: bool = False) -> Console:
    """A console that prints text as it is: no markup, no emoji codes, nothing highlighted."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def new_table(title: str, *columns: str, align: str = "", **settings: Any) -> Table:
    """A table with a title. align: "r" for each column that is aligned to the right, in their order."""
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left", **settings)
    for column, letter in zip(table.columns, align, strict=False):
        column.justify = "right" if letter == "r" else "left"
    return table


def format_match(probability: float) -> str:
    """A probability as a person reads it: 83 %, 0.02 %, <0.01 %."""
    percent = 100 * probability
    if percent >= 1:
        return f"{percent:.0f} %"
    return f"{percent:.2g} %" if percent >= 0.01 else "<0.01 %"


def print_facts(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """A table of names and values."""
    table = new_table(title, show_header=False)
    for row in rows:
        table.add_row(*row)
    new_console().print(table)


def print_first(lines: Sequence[str], most: int, rest: str, indent: str = "") -> None:
    """The first lines, and how many more there are. rest: where to see them all."""
    shown = lines if len(lines) <= most else [*lines[:most], f"… and {len(lines) - most:,} more; {rest}"]
    for line in shown:
        typer.echo(f"{indent}{line}")


def escape_name(name: str) -> str:
    """A name with bytes that are not Unicode, as of files in an old encoding, and control characters escaped."""
    escaped = name.encode(errors="backslashreplace").decode()
    return "".join(repr(sign)[1:-1] if unicodedata.category(sign) == "Cc" else sign for sign in escaped)


class ProgressBar:
    """A `Progress` that draws a bar for each stage on stderr, and a `note` behind it; removed when it is closed.

    quiet: draw nothing. log_seconds: where stderr is not a terminal, write a line this often instead; None: never.
    """

    note = ""

    def __init__(self, quiet: bool = False, log_seconds: float | None = None) -> None:
        self.console = new_console(stderr=True)
        self._quiet, self._log_seconds, self._logged = quiet, log_seconds, time.monotonic()
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        if self._quiet:
            return
        if not self.console.is_terminal:
            if self._log_seconds is not None and time.monotonic() - self._logged >= self._log_seconds:
                self._logged = time.monotonic()
                typer.echo(f"   {stage}: {done:,} of {total:,}", err=True)
            return
        if self._bars is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            behind = (TextColumn("{task.fields[note]}", markup=False), TimeRemainingColumn())
            self._bars = Progress(*columns, *behind, console=self.console, transient=True)
            self._bars.start()
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total, note=self.note)
        self._bars.update(self._tasks[stage], completed=done, total=total, note=self.note)

    @property
    def stages(self) -> Iterable[str]:
        """Those that bars are drawn of."""
        return self._tasks.keys()

    def close(self) -> None:
        """Remove the bars, so that something else can be drawn; the next call draws new ones."""
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._tasks = None, {}


@contextmanager
def exit_on_interrupt(message: str) -> Iterator[None]:
    """Ctrl-C ends the command with this message on stderr and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\n{message}", err=True)
        sys.exit(130)
