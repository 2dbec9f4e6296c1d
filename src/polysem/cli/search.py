"""`polysem search` and `polysem serve`: the best items of an index for a text, a picture or another item."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from polysem.cli.options import AsJson, option
from polysem.cli.output import format_match, new_console, new_table, print_json
from polysem.errors import InputError, unknown

if TYPE_CHECKING:
    from polysem.search import SearchResults

IndexPath = Annotated[str, Argument(metavar="INDEX", help="The index.")]
ModelPath = Annotated[str | None, option("Where the index's model is now.", "--model", default="where it was")]

SIDES = {"images": "image", "texts": "text", "image": "image", "text": "text"}


def search_command(
    path: IndexPath,
    query: Annotated[str | None, Argument(metavar="TEXT", help="What to look for.", show_default="none")] = None,
    image: Annotated[Path | None, option("Look for what is like this picture or video.")] = None,
    item: Annotated[str | None, option("Look for what is like this item, by its id.")] = None,
    find: Annotated[str | None, option("images or texts.", default="images, if there are any")] = None,
    k: Annotated[int, Option("--k", help="How many results.")] = 10,
    where: Annotated[str | None, option("Only these items: label = 'dog' and year > 2020.", "--filter")] = None,
    fast: Annotated[
        bool | None,
        option("Score candidates alone, or all.", "--fast/--exact", default="exact in a folder, fast in Milvus"),
    ] = None,
    candidates: Annotated[int, Option(help="How many items --fast scores in full.")] = 200,
    relevant: Annotated[bool, Option("--relevant", help="Leave out what the scores show to be irrelevant.")] = False,
    dedupe: Annotated[bool, Option("--dedupe", help="Show of near-duplicates the best alone.")] = False,
    hybrid: Annotated[bool, Option("--hybrid", help="Rank by words of captions and ids too; in a folder.")] = False,
    model: ModelPath = None,
    sheet: Annotated[Path | None, option("Write the pictures found, of videos the moment, to this PNG file.")] = None,
    as_json: AsJson = False,
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
    options: dict[str, Any] = {"find": None if find is None else SIDES[find], "k": k, "where": where}
    options |= {"mode": None if fast is None else "fast" if fast else "exact", "candidates": candidates}
    options |= {"relevant": relevant, "dedupe": dedupe, "hybrid": hybrid}
    with Index.open(path, model=model) as index:
        results = index.search(query, image=image, item=item, **options)
    if as_json:
        print_json(results.as_dict())
    else:
        show_results(results)
    if sheet is not None:
        _draw_sheet(results, sheet)


def show_results(results: SearchResults) -> None:
    """The results as a table, best first, and how they were found."""
    console = new_console()
    calibrated = any(result.match is not None for result in results)
    numbers = ("score", "match") if calibrated else ("score",)
    table = new_table("", "", *numbers, "id", "caption", align="r" * (1 + len(numbers)))
    timed, labelled = any(result.moment for result in results), any(result.labels for result in results)
    if timed:
        table.add_column("moment", no_wrap=True)
    if labelled:
        table.add_column("labels")
    for result in results:
        more = f"  +{len(result.duplicates)} alike" if result.duplicates else ""
        moment = ["" if result.moment is None else result.moment.text] if timed else []
        labels = [", ".join(result.labels)] if labelled else []
        match = ["" if result.match is None else format_match(result.match)] if calibrated else []
        scores = (f"{result.score:.3f}", *match)
        table.add_row(str(result.rank), *scores, result.id + more, result.caption or "", *moment, *labels)
    console.print(table if results.items else "Nothing found.")
    mode = f"hybrid (vectors and words), {results.mode}" if results.hybrid else results.mode
    way = f"{mode}, {results.scored:,} of {results.of:,} {results.side}s scored in full, {1e3 * results.seconds:.0f} ms"
    if results.cut is not None:
        way += f"; {results.cut.explain()}"
    console.print(f"[{way}]", style="dim", soft_wrap=True)
    if results.folded_among is not None:
        duplicates = f"Of the best {results.folded_among:,} most are duplicates: there may be more different ones."
        console.print(duplicates, style="bold")
    if results.unreadable:
        console.print(f"{results.unreadable:,} items could not be searched: run `polysem verify`.", style="bold red")


def _draw_sheet(results: SearchResults, out: Path) -> None:
    """The pictures found on one sheet, best first; of videos the frame at the moment."""
    from polysem.data.collection import Collection, Item, Media
    from polysem.data.contact_sheet import write_contact_sheet

    items, times = [], {}
    for result in results:
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
        write_contact_sheet(Collection("results", "image", items), out, count=len(items), times=times)
    except OSError as error:
        raise InputError(f"--sheet {out}: cannot be written ({error.strerror or error}).") from None


def serve_command(
    path: IndexPath,
    host: Annotated[str, Option(help="Where to listen. Anything but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, Option(help="0 takes any free one.")] = 8000,
    token_file: Annotated[Path | None, option("The token: for changes, and off loopback for all. chmod 600.")] = None,
    read_only: Annotated[bool, Option("--read-only", help="Refuse changes, token or not.")] = False,
    model: ModelPath = None,
    allow_host: Annotated[list[str] | None, option("A host name that URLs may use; may be repeated.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the address as JSON when it listens.")] = False,
) -> None:
    """Serve an index: a page to search it and an API for programs (/docs). Ctrl-C finishes what is running and ends."""
    import logging

    from polysem.server import Settings, serve
    from polysem.server.settings import read_token

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    token = None if token_file is None else read_token(token_file)
    settings = Settings(host, port, token, read_only, tuple(allow_host or ()))

    def announce(url: str) -> None:
        if as_json:
            print_json({"url": url}, indent=None)
            return
        typer.echo(f"{url}  (the API: {url}/docs)  Ctrl-C ends.")
        if settings.reads_need_token:
            typer.echo("Open it with the token: add #token=… to the address once.", err=True)

    serve(path, settings, model=model, announce=announce)
