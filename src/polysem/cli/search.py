"""`polysem search`: the best items of an index for a text, a picture or another item."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polysem.errors import InputError, unknown

if TYPE_CHECKING:
    from polysem.search import Results

SIDES = {"images": "image", "texts": "text", "image": "image", "text": "text"}


def search_command(
    place: Annotated[str, typer.Argument(metavar="INDEX", help="The index.")],
    query: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to look for.", show_default="none")] = None,
    image: Annotated[
        Path | None, typer.Option("--image", help="Look for what is like this picture or video.", show_default="none")
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", help="Look for what is like this item, by its id.", show_default="none")
    ] = None,
    find: Annotated[
        str | None, typer.Option("--find", help="images or texts.", show_default="images, if there are any")
    ] = None,
    k: Annotated[int, typer.Option("--k", help="How many results.")] = 10,
    where: Annotated[
        str | None,
        typer.Option(
            "--filter", help="Only items for which this holds: label = 'dog' and year > 2020.", show_default="none"
        ),
    ] = None,
    fast: Annotated[
        bool | None,
        typer.Option(
            "--fast/--exact",
            help="By set means first, or exactly.",
            show_default="the index's own: exact in a folder, fast in Milvus",
        ),
    ] = None,
    candidates: Annotated[int, typer.Option(help="How many items --fast scores in full.")] = 200,
    relevant: Annotated[
        bool, typer.Option("--relevant", help="Leave out what this query's own scores show to be irrelevant.")
    ] = False,
    dedupe: Annotated[bool, typer.Option("--dedupe", help="Fold near-duplicates into the best of them.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", help="Where the index's model is now.", show_default="where it was")
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            "--sheet", help="Write the pictures found, of videos the moment, to this PNG file.", show_default="none"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Search an index. Text and pictures find pictures and texts alike, and in videos the moment that matches."""
    from polysem.search import Index

    if find is not None and find not in SIDES:
        raise unknown("thing to find", find, ("images", "texts"))
    if sum(given is not None for given in (query, image, item)) != 1:
        raise InputError('Search for one thing: "a text", --image FILE or --item ID.')
    if image is not None and not image.is_file():
        raise InputError(f"{image}: no such picture.")
    if sheet is not None and (sheet.is_dir() or not sheet.parent.is_dir()):
        raise InputError(f"--sheet {sheet}: give the name of a PNG file to write, in a folder that exists.")
    with Index.open(place, model=model) as index:
        found = index.search(
            query,
            image=image,
            item=item,
            find=None if find is None else SIDES[find],  # type: ignore[arg-type]
            k=k,
            where=where,
            mode=None if fast is None else "fast" if fast else "exact",
            candidates=candidates,
            relevant=relevant,
            dedupe=dedupe,
        )
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
    else:
        show(found)
    if sheet is not None:
        draw(found, sheet)


def show(found: Results) -> None:
    """The results as a table, best first, and how they were found."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table("", "score", "id", "caption")
    table.columns[0].justify = table.columns[1].justify = "right"
    timed = any(result.moment for result in found)
    if timed:
        table.add_column("moment", no_wrap=True)
    labelled = any(result.labels for result in found)
    if labelled:
        table.add_column("labels")
    for result in found:
        more = f"  +{len(result.duplicates)} alike" if result.duplicates else ""
        row = [str(result.rank), f"{result.score:.3f}", result.id + more, result.caption or ""]
        if timed:
            row.append("" if result.moment is None else result.moment.text)
        table.add_row(*(Text(cell) for cell in [*row, *([", ".join(result.labels)] if labelled else [])]))
    if found.items:
        console.print(table)
    else:
        console.print("Nothing found.")
    way = f"{found.mode}, {found.scored:,} of {found.of:,} {found.side}s scored in full, {1e3 * found.seconds:.0f} ms"
    if found.cut is not None:
        way += f"; {found.cut.explained()}"
    console.print(Text(f"[{way}]", style="dim"), soft_wrap=True)
    if found.folded_among is not None:
        console.print(
            f"Folded among the best {found.folded_among:,}, most of them duplicates: there may be more different ones.",
            style="bold",
        )
    if found.unreadable:
        console.print(f"{found.unreadable:,} items could not be searched: run `polysem verify`.", style="bold red")


def draw(found: Results, out: Path) -> None:
    """The pictures found on one sheet, best first; of videos the frame at the moment."""
    from polysem.data.collection import Collection, Item, Media
    from polysem.data.contact_sheet import contact_sheet

    items, times = [], {}
    for result in found:
        if result.side == "image" and result.path is not None and not result.path.endswith(".npy"):
            path, moment = Path(result.path), result.moment
            name = f"{result.rank}. {result.score:.3f}  {result.id}"
            if moment is not None and moment.time is not None:
                name += f"  {moment.text}"
                times[name] = moment.time
            items.append(Item(name, Media(path.parent, path.name), (result.caption,) if result.caption else ()))
    if not items:
        raise InputError("There are no pictures among the results for --sheet to show.")
    try:
        contact_sheet(Collection("results", "image", items), out, count=len(items), times=times)
    except OSError as error:
        raise InputError(f"--sheet {out}: cannot be written ({error.strerror or error}).") from None
