"""`polysem features`: the local features of a collection, extracted once and kept on disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from polysem.data.collection import Skipped
    from polysem.data.store import FeatureStore
    from polysem.encoders import Encoder

_SHOWN = 10


@dataclass(frozen=True)
class Summary:
    """What one process has done, and what the store holds now."""

    store: str
    what: str
    rank: int
    world_size: int
    items: int
    tokens: int
    bytes: int
    extracted: int
    resumed: int
    seconds: float
    per_second: float
    skipped: list[dict[str, str]]


def features_command(
    data: Annotated[Path, typer.Argument(help="The collection: a folder, or the file that describes it.")],
    encoder: Annotated[str, typer.Option(help="Name of the encoder, such as grid; a text encoder takes captions.")],
    out: Annotated[Path, typer.Option(help="Folder of the features. One begun earlier is completed.")],
    model: Annotated[str | None, typer.Option(help="Pretrained model of the encoder.", show_default="its own")] = None,
    dtype: Annotated[str, typer.Option(help="float16, or float32 for twice the space.")] = "float16",
    batch_size: Annotated[int | None, typer.Option(help="Inputs at a time.", show_default="by device")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split; repeatable.", show_default="all")] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="A knob of the encoder; repeatable.", show_default="none"),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Threads.", show_default="one per core")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps …")] = "auto",
    retry_skipped: Annotated[bool, typer.Option("--retry-skipped", help="Try again what was skipped before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Extract the local features of a collection into a folder, once. Stopped at any moment, it goes on from there.

    Under `accelerate launch` or `torchrun` the processes share the work and the folder.
    """
    from polysem.data import open_collection
    from polysem.encoders import build
    from polysem.encoders.extraction import extract, extract_texts

    rank, world_size = _whole_number("RANK", 0), _whole_number("WORLD_SIZE", 1)
    collection = open_collection(data)
    if split:
        collection = collection.split(*split)
    knobs = dict(_knob(given) for given in knob or ())
    built: Any = build(encoder, **({} if model is None else {"model": model}), **knobs)
    _move(built, device)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "dtype": dtype,
        "rank": rank,
        "world_size": world_size,
        "retry_skipped": retry_skipped,
    }
    started = time.monotonic()
    what = "captions" if built.takes == "tokens" else f"{built.kind}s"
    with _bar(f"{collection.name}: {encoder}", what, shown=rank == 0) as show:
        if built.takes == "tokens":
            store = extract_texts(collection, built, out, **options, progress=show.progress, on_skip=show.skip)
        else:
            store = extract(
                collection, built, out, **options, workers=workers, progress=show.progress, on_skip=show.skip
            )
    summary = _summarise(store, what, show, rank, world_size, time.monotonic() - started)
    if as_json:
        # One line for each process, so that lines of several can be told apart.
        typer.echo(json.dumps(asdict(summary), indent=2 if world_size == 1 else None))
    else:
        _show(summary, store.skipped)


def _whole_number(name: str, default: int) -> int:
    given = os.environ.get(name, str(default))
    if not given.isdecimal():
        raise ConfigError(f"The environment variable {name} must be a whole number, got {given!r}. Unset it.")
    return int(given)


def _knob(given: str) -> tuple[str, Any]:
    from polysem.recipes.loading import read_value

    name, equals, value = given.partition("=")
    if not equals:
        raise ConfigError(f"--set takes KNOB=VALUE, got {given!r}. Example: --set image_size=256.")
    return name, read_value(value, given)


def _move(encoder: Encoder, device: str) -> None:
    import torch

    if device == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
        device = str(found)
        if device != "cpu" and torch.accelerator.device_count() > 1:
            device = f"{device}:{_whole_number('LOCAL_RANK', 0)}"
    try:
        encoder.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"Cannot use the device {device!r}: {reason} `polysem doctor` shows what is here.") from None


class _Shown:
    """Counts the items of an extraction and passes them on to a bar.

    resumed: items that an earlier run had done. done: those and this run's. skipped: items this run could not read.
    """

    def __init__(self, update: Callable[[_Shown, int], None]) -> None:
        self.resumed: int | None = None
        self.done = self.skipped = 0
        self._update = update

    def progress(self, _: str, done: int, total: int, /) -> None:
        self.resumed = done if self.resumed is None else self.resumed
        self.done = done
        self._update(self, total)

    def skip(self, _: Skipped) -> None:
        self.skipped += 1

    @property
    def new(self) -> int:
        return self.done - (self.resumed or 0)


@contextmanager
def _bar(title: str, what: str, shown: bool) -> Iterator[_Shown]:
    """A progress bar on stderr with the speed and the time that is left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(title, total=None, speed="")
        started = time.monotonic()

        def update(counts: _Shown, total: int) -> None:
            speed = f"{counts.new / max(time.monotonic() - started, 1e-9):.1f} {what}/s" if counts.new else ""
            if counts.skipped:
                speed += f", {counts.skipped} skipped"
            bar.update(task, total=total, completed=counts.done, speed=speed)

        yield _Shown(update)


def _summarise(store: FeatureStore, what: str, counts: _Shown, rank: int, world_size: int, seconds: float) -> Summary:
    return Summary(
        store=str(store.folder),
        what=what,
        rank=rank,
        world_size=world_size,
        items=len(store),
        tokens=int(store.lengths.sum()),
        bytes=store.nbytes,
        extracted=counts.new - counts.skipped,
        resumed=counts.resumed or 0,
        seconds=round(seconds, 3),
        per_second=round(counts.new / seconds, 2),
        skipped=[{"item": skip.what, "why": skip.why} for skip in store.skipped],
    )


def _show(summary: Summary, skipped: tuple[Skipped, ...]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    title = "Features" if summary.world_size == 1 else f"Features, process {summary.rank + 1} of {summary.world_size}"
    table = Table("", "", title=title, title_justify="left", show_header=False)
    table.add_row("Store", escape(summary.store))
    table.add_row(
        summary.what.capitalize(),
        f"{summary.items:,} ({summary.extracted:,} now, {summary.resumed:,} of this share before)",
    )
    table.add_row("Tokens", f"{summary.tokens:,}")
    table.add_row("Size", f"{summary.bytes / 1e6:,.1f} MB")
    table.add_row(
        "Speed", f"{summary.per_second:,.1f} {summary.what}/s" if summary.per_second else "nothing was left to do"
    )
    table.add_row("Skipped", f"{len(skipped):,}")
    console = Console(highlight=False)
    console.print(table)
    for skip in skipped[:_SHOWN]:
        console.print(f"[yellow]skipped[/yellow] {escape(skip.what)}: {escape(skip.why)}", soft_wrap=True)
    if len(skipped) > _SHOWN:
        console.print(f"and {len(skipped) - _SHOWN:,} more; --json lists them all.")
