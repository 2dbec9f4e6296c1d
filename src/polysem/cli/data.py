"""`polysem data`: check a collection, show it, or make one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.common import AsJson, ProgressBar, new_console, print_facts, print_json

if TYPE_CHECKING:
    from polysem.data.check import CheckReport, CollectionStatistics

DataPath = Annotated[Path, typer.Argument(help="A folder or file of data, in any layout that polysem reads.")]
Images = Annotated[Path | None, typer.Option(help="Where the pictures are, if not in the usual place.")]
Repair = Annotated[bool, typer.Option("--repair-bytes", help="Decode captions that begin with b'.")]
NewFolder = Annotated[Path, typer.Option("--out", help="The folder to make; new or empty.")]


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
    if as_json:
        items = None if report.collection is None else len(report.collection)
        problems = [asdict(problem) for problem in report.problems]
        print_json({"sound": report.sound, "items": items, "problems": problems})
    else:
        _show_check(report)
    if not report.sound:
        raise typer.Exit(1)


def _show_check(report: CheckReport) -> None:
    from rich.table import Table
    from rich.text import Text

    console = new_console()
    styles = {"error": "bold red", "skip": "yellow", "note": "cyan"}
    groups: dict[tuple[str, str], list[Any]] = {}
    for problem in report.problems:
        groups.setdefault((problem.severity, problem.kind), []).append(problem)
    if groups:
        table = Table("", "What", "How many", "The first of them", title="Found", title_justify="left")
        for (severity, kind), problems in sorted(groups.items(), key=lambda group: list(styles).index(group[0][0])):
            first = Text(f"{problems[0].where}: {problems[0].message}")
            table.add_row(Text(severity, styles[severity]), kind, str(len(problems)), first)
        console.print(table)
    if report.collection is not None:
        collection = report.collection
        splits = ", ".join(f"{split} {count}" for split, count in collection.splits.items())
        console.print(f"{len(collection)} items, {len(collection.captions)} captions ({splits}).")
    verdict = "[green]Sound.[/green]" if report.sound else "[red]Not sound: mend what is marked as an error.[/red]"
    console.print(verdict)


def show_command(
    path: DataPath,
    out: Annotated[Path, typer.Option(help="Where the contact sheet goes.")] = Path("contact-sheet.png"),
    count: Annotated[int, typer.Option(min=1, help="Pictures on the sheet.")] = 12,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    seed: Annotated[int, typer.Option(help="Draws other pictures.")] = 0,
    images: Images = None,
    repair_bytes: Repair = False,
    as_json: AsJson = False,
) -> None:
    """Print what a collection holds and write a contact sheet of some of its pictures with their captions."""
    from polysem.data import open_collection
    from polysem.data.check import compute_statistics
    from polysem.data.contact_sheet import contact_sheet

    collection = open_collection(path, **_options(images, repair_bytes))
    if split is not None:
        collection = collection.split(split)
    figures = compute_statistics(collection)
    sheet = contact_sheet(collection, out, count, seed=seed) if collection.kind == "image" else None
    if as_json:
        print_json({**asdict(figures), "contact_sheet": sheet and str(sheet)})
    else:
        _show_statistics(figures, sheet)


def _show_statistics(figures: CollectionStatistics, sheet: Path | None) -> None:
    per_item = ", ".join(f"{count:,} items with {number}" for number, count in figures.captions_per_item.items())
    rows = [
        ("items", f"{figures.items:,} ({figures.kind})"),
        ("splits", ", ".join(f"{name} {count:,}" for name, count in figures.splits.items())),
        ("captions", f"{figures.captions:,} ({per_item})"),
        ("words", f"{figures.words:,}, {figures.mean_words_per_caption:.1f} per caption"),
        ("different words", f"{figures.different_words:,}"),
    ]
    if figures.labels:
        common = ", ".join(f"{label} {count}" for label, count in list(figures.labels.items())[:8])
        rows.append(("labels", f"{len(figures.labels)}: {common} …"))
    if figures.boxes:
        rows.append(("boxes", f"{figures.boxes:,}"))
    print_facts(figures.name, [*rows, ("left out", f"{figures.skipped:,}")])
    new_console().print(
        f"Contact sheet: {sheet}" if sheet else f"No contact sheet: these are {figures.kind}, not pictures."
    )


def make_emoji_scenes_command(
    out: NewFolder,
    items: Annotated[int, typer.Option("--items", help="How many pictures.", min=1)] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Another number, other pictures.", min=0)] = 0,
    size: Annotated[int, typer.Option("--size", help="Width and height of the pictures in pixels.")] = 224,
    as_json: AsJson = False,
) -> None:
    """Make pictures of several emoji, five captions each, with labels, boxes and splits."""
    from polysem.synthetic.scenes.make import make_emoji_scenes

    with ProgressBar() as progress:
        made = make_emoji_scenes(out, items, seed, size, progress)
    _show_made("emoji scenes", made, items, seed, size, as_json)


def make_emoji_clips_command(
    out: NewFolder,
    items: Annotated[int, typer.Option("--items", help="How many clips.", min=1)] = 600,
    seed: Annotated[int, typer.Option("--seed", help="Another number, other clips.", min=0)] = 0,
    size: Annotated[int, typer.Option("--size", help="Width and height of the clips in pixels, even.")] = 192,
    as_json: AsJson = False,
) -> None:
    """Make short videos of moving emoji, five captions each, with splits and the true time of every event."""
    from polysem.synthetic.clips.make import make_emoji_clips

    with ProgressBar() as progress:
        made = make_emoji_clips(out, items, seed, size, progress)
    _show_made("emoji clips", made, items, seed, size, as_json)


def _show_made(what: str, folder: Path, items: int, seed: int, size: int, as_json: bool) -> None:
    if as_json:
        name = what.replace(" ", "-")
        print_json({"dataset": name, "path": str(folder), "items": items, "seed": seed, "size": size})
    else:
        typer.echo(f"{folder}: {items} {what}, {5 * items} captions")
