"""What commands share: options, opening collections, progress bars, JSON and tables."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from polysem.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from polysem.data.collection import Collection
    from polysem.evaluation.protocols import Protocol

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Data = Annotated[str, typer.Option("--data", help="The collection: whatever `polysem data check` can read.")]
Features = Annotated[Path | None, typer.Option("--features", help="Store of image features.", show_default="none")]
TextFeatures = Annotated[
    Path | None, typer.Option("--text-features", help="Store of caption features.", show_default="none")
]
FolderLabels = Annotated[bool, typer.Option("--folder-labels", help="Names of subfolders are labels.")]
ProtocolOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of the protocol, such as annotations=FILE, k=50 or quirk=NAME; repeatable.",
        show_default="none",
    ),
]


def open_data(source: str | Path, folder_labels: bool = False) -> Collection:
    """folder_labels: of a folder of pictures, take the names of its subfolders for labels."""
    from polysem.data import open_collection

    options: dict[str, Any] = {"folder_labels": True} if folder_labels else {}
    return open_collection(source, **options)


def find_protocol(name: str, options: list[str] | None) -> Protocol:
    """options: KEY=VALUE."""
    from polysem.evaluation import protocols

    values = {}
    for option in options or []:
        key, equals, value = option.partition("=")
        if not equals:
            raise InputError(f"--option takes KEY=VALUE, got {option!r}.")
        values[key] = value
    return protocols.find(name).with_options(**values)


# -------------------------------------------------------------------------------------------------------------- output


def print_json(content: Any, indent: int | None = 2) -> None:
    text = json.dumps(content, indent=indent, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:  # names of files that are no Unicode
        text = json.dumps(content, indent=indent, default=str)
    typer.echo(text)


def new_console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def print_facts(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """A table of names and values, which are printed as they are, not read as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, style="table.title"), title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    new_console().print(table)


def printable(name: str) -> str:
    """A name with what is no Unicode in it, as of files in an old encoding, and control characters escaped."""
    escaped = name.encode(errors="backslashreplace").decode()
    return "".join(repr(sign)[1:-1] if unicodedata.category(sign) == "Cc" else sign for sign in escaped)


class ProgressBar:
    """A `Progress` that draws a bar for each stage on stderr. They are removed when it is closed.

    Args:
        quiet: Draw nothing.
        log_seconds: Where stderr is no terminal, write a line this often instead; None: never.

    Attributes:
        note: What to write behind the bar, such as a speed.
    """

    note = ""

    def __init__(self, quiet: bool = False, log_seconds: float | None = None) -> None:
        from rich.console import Console

        self.console = Console(stderr=True)
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

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            behind = (TextColumn("{task.fields[note]}"), TimeRemainingColumn())
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


# ------------------------------------------------------------------------------------------------------- quick `--help`
# typer validates the value of a help flag nobody gave (None) with pydantic, and importing that takes as long as the
# rest of a quick command. A default of False needs no validation.


def _without_validation(option: TyperOption | None) -> TyperOption | None:
    if option is not None:
        option.default = False
    return option


class QuickCommand(TyperCommand):
    def get_help_option(self, ctx: Any) -> TyperOption | None:
        return _without_validation(super().get_help_option(ctx))


class QuickGroup(TyperGroup):
    def get_help_option(self, ctx: Any) -> TyperOption | None:
        return _without_validation(super().get_help_option(ctx))
