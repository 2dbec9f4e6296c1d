"""`polysem data`: check a collection, show it, or make one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polysem.data.check import CheckReport, CollectionStatistics

DataPath = Annotated[Path, typer.Argument(help="A folder or file of data, in any layout that polysem reads.")]
Images = Annotated[Path | None, typer.Option(help="Where the pictures are, if not in the usual place.")]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
Repair = Annotated[bool, typer.Option("--repair-bytes", help="Decode captions that begin with b'.")]


def _options(images: Path | None, repair_bytes: bool) -> dict[str, Any]:
    given: dict[str, Any] = {"images": images} if images else {}
    return {**given, "repair_bytes": True} if repair_bytes else given


def check_command(path: DataPath, images: Images = None, repair_bytes: Repair = False, as_json: Json = False) -> None:
    """Report everything that is wrong with a collection: captions, counts, pictures, features, leaks between splits.

    The exit code is 1 if anything is an error.
    """
    from rich.console import Console
    from rich.progress import Progress

    from polysem.data.check import check_collection

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking at every item", total=None)
        report = check_collection(
            path,
            progress=lambda _, done, total: bar.update(task, completed=done, total=total),
            **_options(images, repair_bytes),
        )
    if as_json:
        items = None if report.collection is None else len(report.collection)
        found = [asdict(problem) for problem in report.problems]
        typer.echo(json.dumps({"sound": report.sound, "items": items, "problems": found}, indent=2))
    else:
        _show_check(report)
    if not report.sound:
        raise typer.Exit(1)


def _show_check(report: CheckReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    styles = {"error": "bold red", "skip": "yellow", "note": "cyan"}
    groups: dict[tuple[str, str], list[Any]] = {}
    for problem in report.problems:
        groups.setdefault((problem.severity, problem.kind), []).append(problem)
    if groups:
        table = Table("", "What", "How many", "The first of them", title="Found", title_justify="left")
        for severity in styles:
            for (found, kind), problems in groups.items():
                if found == severity:
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
    as_json: Json = False,
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
        typer.echo(json.dumps({**asdict(figures), "contact_sheet": sheet and str(sheet)}, indent=2))
    else:
        _show_statistics(figures, sheet)


def _show_statistics(figures: CollectionStatistics, sheet: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("", "", title=figures.name, title_justify="left", show_header=False)
    table.add_row("items", f"{figures.items:,} ({figures.kind})")
    table.add_row("splits", ", ".join(f"{name} {count:,}" for name, count in figures.splits.items()))
    per_item = ", ".join(f"{count:,} items with {number}" for number, count in figures.captions_per_item.items())
    table.add_row("captions", f"{figures.captions:,} ({per_item})")
    table.add_row("words", f"{figures.words:,}, {figures.mean_words_per_caption:.1f} per caption")
    table.add_row("different words", f"{figures.different_words:,}")
    if figures.labels:
        common = ", ".join(f"{label} {count}" for label, count in list(figures.labels.items())[:8])
        table.add_row("labels", f"{len(figures.labels)}: {common} …")
    if figures.boxes:
        table.add_row("boxes", f"{figures.boxes:,}")
    table.add_row("left out", f"{figures.skipped:,}")
    console.print(table)
    console.print(f"Contact sheet: {sheet}" if sheet else f"No contact sheet: these are {figures.kind}, not pictures.")
