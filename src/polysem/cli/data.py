"""`polysem data` and `polysem features`: check a collection, show it or make one; extract its local features."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from polysem.cli.options import AsJson, Splits, open_data, option, parse_pairs
from polysem.cli.output import ProgressBar, escape_name, new_console, new_table, print_facts, print_first, print_json
from polysem.errors import ConfigError

if TYPE_CHECKING:
    from polysem.data.collection import Skipped
    from polysem.encoders import Encoder

DataPath = Annotated[Path, Argument(help="A folder or file of data, in any layout that polysem reads.")]
Images = Annotated[Path | None, Option(help="Where the pictures are, if not in the usual place.")]
Repair = Annotated[bool, Option("--repair-bytes", help="Decode captions that begin with b'.")]
NewFolder = Annotated[Path, Option("--out", help="The folder to make; new or empty.")]
_STYLES = {"error": "bold red", "skip": "yellow", "note": "cyan"}
_SHOWN = 10


def _options(images: Path | None, repair_bytes: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"images": images} if images else {}
    return {**options, "repair_bytes": True} if repair_bytes else options


def check_command(path: DataPath, images: Images = None, repair_bytes: Repair = False, as_json: AsJson = False) -> None:
    """Report everything that is wrong with a collection: captions, counts, pictures, features, leaks between splits.

    The exit code is 1 if anything is an error.
    """
    from polysem.data.check import check_collection

    with ProgressBar() as progress:
        report = check_collection(path, progress=progress, **_options(images, repair_bytes))
    collection = report.collection
    if as_json:
        items = None if collection is None else len(collection)
        print_json({"sound": report.has_no_errors, "items": items, "problems": list(map(asdict, report.problems))})
    else:
        from rich.text import Text

        console, groups = new_console(), dict[tuple[str, str], list[Any]]()
        for problem in report.problems:
            groups.setdefault((problem.severity, problem.kind), []).append(problem)
        if groups:
            table = new_table("Problems", "", "What", "How many", "The first of them")
            for (severity, kind), problems in sorted(groups.items(), key=lambda pair: list(_STYLES).index(pair[0][0])):
                first = f"{problems[0].where}: {problems[0].message}"
                table.add_row(Text(severity, _STYLES[severity]), kind, str(len(problems)), first)
            console.print(table)
        if collection is not None:
            splits = ", ".join(f"{split} {count}" for split, count in collection.splits.items())
            console.print(f"{len(collection)} items, {len(collection.captions)} captions ({splits}).")
        verdict = "Sound." if report.has_no_errors else "Not sound: correct what is marked as an error."
        console.print(verdict, style="green" if report.has_no_errors else "red")
    if not report.has_no_errors:
        raise typer.Exit(1)


def show_command(
    path: DataPath,
    out: Annotated[Path, Option(help="Where the contact sheet goes.")] = Path("contact-sheet.png"),
    count: Annotated[int, Option(min=1, help="Pictures on the sheet.")] = 12,
    split: Annotated[str | None, Option(help="Only this split.")] = None,
    seed: Annotated[int, Option(help="Draws other pictures.")] = 0,
    images: Images = None,
    repair_bytes: Repair = False,
    as_json: AsJson = False,
) -> None:
    """Print what a collection holds and write a contact sheet of some of its pictures with their captions."""
    from polysem.data import open_collection
    from polysem.data.check import compute_statistics
    from polysem.data.contact_sheet import write_contact_sheet

    collection = open_collection(path, **_options(images, repair_bytes))
    if split is not None:
        collection = collection.split(split)
    figures = compute_statistics(collection)
    sheet = write_contact_sheet(collection, out, count, seed=seed) if collection.kind == "image" else None
    if as_json:
        print_json({**figures, "contact_sheet": sheet and str(sheet)})
        return
    per_item = ", ".join(f"{count:,} items with {number}" for number, count in figures["captions_per_item"].items())
    rows = [
        ("items", f"{figures['items']:,} ({figures['kind']})"),
        ("splits", ", ".join(f"{name} {count:,}" for name, count in figures["splits"].items())),
        ("captions", f"{figures['captions']:,} ({per_item})"),
        ("words", f"{figures['words']:,}, {figures['mean_words_per_caption']:.1f} per caption"),
        ("different words", f"{figures['different_words']:,}"),
    ]
    if figures["labels"]:
        common = ", ".join(f"{label} {count}" for label, count in list(figures["labels"].items())[:8])
        rows.append(("labels", f"{len(figures['labels'])}: {common} …"))
    if figures["boxes"]:
        rows.append(("boxes", f"{figures['boxes']:,}"))
    print_facts(figures["name"], [*rows, ("left out", f"{figures['skipped']:,}")])
    typer.echo(f"Contact sheet: {sheet}" if sheet else f"No contact sheet: these are {figures['kind']}, not pictures.")


def make_emoji_scenes_command(
    out: NewFolder,
    items: Annotated[int, Option(help="How many pictures.", min=1)] = 2000,
    seed: Annotated[int, Option(help="Another number, other pictures.", min=0)] = 0,
    size: Annotated[int, Option(help="Width and height of the pictures in pixels.")] = 224,
    as_json: AsJson = False,
) -> None:
    """Make pictures of several emoji, five captions each, with labels, boxes and splits."""
    from polysem.synthetic.scenes.make import make_emoji_scenes

    _make(make_emoji_scenes, "emoji scenes", out, items, seed, size, as_json)


def make_emoji_clips_command(
    out: NewFolder,
    items: Annotated[int, Option(help="How many clips.", min=1)] = 600,
    seed: Annotated[int, Option(help="Another number, other clips.", min=0)] = 0,
    size: Annotated[int, Option(help="Width and height of the clips in pixels, even.")] = 192,
    as_json: AsJson = False,
) -> None:
    """Make short videos of moving emoji, five captions each, with splits and the true time of every event."""
    from polysem.synthetic.clips.make import make_emoji_clips

    _make(make_emoji_clips, "emoji clips", out, items, seed, size, as_json)


def _make(make: Any, what: str, out: Path, items: int, seed: int, size: int, as_json: bool) -> None:
    with ProgressBar() as progress:
        folder = make(out, items, seed, size, progress)
    if as_json:
        name = what.replace(" ", "-")
        print_json({"dataset": name, "path": str(folder), "items": items, "seed": seed, "size": size})
    else:
        typer.echo(f"{folder}: {items} {what}, {5 * items} captions")


def features_command(
    data: Annotated[Path, Argument(help="The collection: a folder, or the file that describes it.")],
    encoder: Annotated[str, Option(help="Name of the encoder, such as grid; a text encoder takes captions.")],
    out: Annotated[Path, Option(help="Folder of the features. One begun earlier is completed.")],
    model: Annotated[str | None, option("Pretrained model of the encoder.", default="its own")] = None,
    dtype: Annotated[str, Option(help="float16, or float32 for twice the space.")] = "float16",
    batch_size: Annotated[int | None, option("Inputs at a time.", default="by device")] = None,
    split: Splits = None,
    knob: Annotated[list[str] | None, option("Change a knob; repeatable.", "--set", metavar="KEY=VALUE")] = None,
    workers: Annotated[int | None, option("Threads.", default="one per core")] = None,
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1, mps …")] = "auto",
    retry_skipped: Annotated[bool, Option("--retry-skipped", help="Try again what was skipped before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Extract the local features of a collection into a folder, once. Stopped at any moment, it goes on from there.

    Under `accelerate launch` or `torchrun` the processes share the work and the folder.
    """
    from polysem.encoders import build
    from polysem.encoders.extraction import extract, extract_texts
    from polysem.recipes.loading import read_value

    rank, world_size = _read_variable("RANK", 0), _read_variable("WORLD_SIZE", 1)
    collection = open_data(data, splits=split)
    knobs = {name: read_value(value, f"{name}={value}") for name, value in parse_pairs("--set", knob).items()}
    built: Any = build(encoder, **({} if model is None else {"model": model}), **knobs)
    _move_encoder(built, device)
    options: dict[str, Any] = {"batch_size": batch_size, "dtype": dtype, "retry_skipped": retry_skipped}
    what = "captions" if built.takes == "tokens" else f"{built.kind}s"
    with _ExtractionBar(f"{collection.name}: {encoder}", what, quiet=rank > 0) as bar:
        options |= {"rank": rank, "world_size": world_size, "progress": bar, "on_skip": bar.skip}
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
        return
    counts = f"({summary['extracted']:,} now, {summary['resumed']:,} of this share before)"
    rows = [
        ("Store", str(store.folder)),
        (what.capitalize(), f"{len(store):,} {counts}"),
        ("Tokens", f"{summary['tokens']:,}"),
        ("Size", f"{store.nbytes / 1e6:,.1f} MB"),
        ("Speed", f"{summary['per_second']:,.1f} {what}/s" if bar.new else "nothing was left to do"),
        ("Skipped", f"{len(store.skipped):,}"),
    ]
    print_facts("Features" if world_size == 1 else f"Features, process {rank + 1} of {world_size}", rows)
    skipped = [f"skipped {escape_name(skip.what)}: {skip.why}" for skip in store.skipped]
    print_first(skipped, _SHOWN, "--json lists them all.")


def _read_variable(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal():
        raise ConfigError(f"The environment variable {name} must be a whole number, got {value!r}. Unset it.")
    return int(value)


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
        raise ConfigError(f"Cannot use the device {device!r}: {reason} `polysem doctor` lists the devices.") from None


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
