"""`polysem features`: the local features of a collection, extracted once and kept on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.common import AsJson, ProgressBar, print_facts, print_json, printable
from polysem.errors import ConfigError

if TYPE_CHECKING:
    from polysem.data.collection import Skipped
    from polysem.encoders import Encoder

_SHOWN = 10


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
    as_json: AsJson = False,
) -> None:
    """Extract the local features of a collection into a folder, once. Stopped at any moment, it goes on from there.

    Under `accelerate launch` or `torchrun` the processes share the work and the folder.
    """
    from polysem.data import open_collection
    from polysem.encoders import build
    from polysem.encoders.extraction import extract, extract_texts

    rank, world_size = _read_variable("RANK", 0), _read_variable("WORLD_SIZE", 1)
    collection = open_collection(data)
    if split:
        collection = collection.split(*split)
    knobs = dict(_parse_knob(text) for text in knob or ())
    built: Any = build(encoder, **({} if model is None else {"model": model}), **knobs)
    _move_encoder(built, device)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "dtype": dtype,
        "rank": rank,
        "world_size": world_size,
        "retry_skipped": retry_skipped,
    }
    what = "captions" if built.takes == "tokens" else f"{built.kind}s"
    with _ExtractionBar(f"{collection.name}: {encoder}", what, quiet=rank > 0) as bar:
        options |= {"progress": bar, "on_skip": bar.skip}
        if built.takes == "tokens":
            store = extract_texts(collection, built, out, **options)
        else:
            store = extract(collection, built, out, **options, workers=workers)
    seconds = time.monotonic() - bar.started
    summary = {
        "store": str(store.folder),
        "what": what,
        "rank": rank,
        "world_size": world_size,
        "items": len(store),
        "tokens": int(store.lengths.sum()),
        "bytes": store.nbytes,
        "extracted": bar.new - bar.skipped,
        "resumed": bar.resumed or 0,
        "seconds": round(seconds, 3),
        "per_second": round(bar.new / seconds, 2),
        "skipped": [{"item": skip.what, "why": skip.why} for skip in store.skipped],
    }
    if as_json:
        # One line for each process, so that lines of several can be told apart.
        print_json(summary, indent=2 if world_size == 1 else None)
    else:
        _show(summary)


def _read_variable(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal():
        raise ConfigError(f"The environment variable {name} must be a whole number, got {value!r}. Unset it.")
    return int(value)


def _parse_knob(text: str) -> tuple[str, Any]:
    from polysem.recipes.loading import read_value

    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set takes KNOB=VALUE, got {text!r}. Example: --set image_size=256.")
    return name, read_value(value, text)


def _move_encoder(encoder: Encoder, device: str) -> None:
    import torch

    if device == "auto":
        device = str(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
        if device != "cpu" and torch.accelerator.device_count() > 1:
            device = f"{device}:{_read_variable('LOCAL_RANK', 0)}"
    try:
        encoder.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"Cannot use the device {device!r}: {reason} `polysem doctor` shows what is here.") from None


class _ExtractionBar(ProgressBar):
    """A bar with the speed, which counts items. resumed: those that an earlier run had done. done: those and this
    run's. skipped: those this run could not read."""

    def __init__(self, title: str, what: str, quiet: bool) -> None:
        super().__init__(quiet)
        self.title, self.what, self.started = title, what, time.monotonic()
        self.resumed: int | None = None
        self.done = self.skipped = 0

    def __call__(self, _: str, done: int, total: int, /) -> None:
        self.resumed = done if self.resumed is None else self.resumed
        self.done = done
        self.note = f"{self.new / max(time.monotonic() - self.started, 1e-9):.1f} {self.what}/s" if self.new else ""
        if self.skipped:
            self.note += f", {self.skipped} skipped"
        super().__call__(self.title, done, total)

    def skip(self, _: Skipped) -> None:
        self.skipped += 1

    @property
    def new(self) -> int:
        return self.done - (self.resumed or 0)


def _show(summary: dict[str, Any]) -> None:
    rank, processes, what = summary["rank"], summary["world_size"], summary["what"]
    speed = f"{summary['per_second']:,.1f} {what}/s" if summary["per_second"] else "nothing was left to do"
    rows = [
        ("Store", summary["store"]),
        (
            what.capitalize(),
            f"{summary['items']:,} ({summary['extracted']:,} now, {summary['resumed']:,} of this share before)",
        ),
        ("Tokens", f"{summary['tokens']:,}"),
        ("Size", f"{summary['bytes'] / 1e6:,.1f} MB"),
        ("Speed", speed),
        ("Skipped", f"{len(summary['skipped']):,}"),
    ]
    print_facts("Features" if processes == 1 else f"Features, process {rank + 1} of {processes}", rows)
    for skip in summary["skipped"][:_SHOWN]:
        typer.echo(f"skipped {printable(skip['item'])}: {skip['why']}")
    if len(summary["skipped"]) > _SHOWN:
        typer.echo(f"and {len(summary['skipped']) - _SHOWN:,} more; --json lists them all.")
