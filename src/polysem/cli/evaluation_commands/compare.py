"""`polysem compare`: the papers' table of several models, measured alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polysem import atomic_write
from polysem.cli.common import (
    AsJson,
    FolderLabels,
    ProgressBar,
    ProtocolOptions,
    find_protocol,
    new_console,
    open_data,
)
from polysem.errors import ConfigError, InputError

if TYPE_CHECKING:
    from polysem.evaluation.reports.compare import Comparison

FORMATS = ("table", "markdown", "latex")


def compare_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="Folders of runs or models, score matrices (.npy), or what `polysem eval --json` wrote."
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="The collection. Only files of `polysem eval` need none.", show_default="none"),
    ] = None,
    protocol: Annotated[str, typer.Option(help="How to measure: as for `polysem eval`.")] = "pairs",
    split: Annotated[
        str | None, typer.Option(help="Which split to search.", show_default="the protocol's: test")
    ] = None,
    rescore: Annotated[
        str | None, typer.Option(help="dual-softmax, query-bank or csls, for all.", show_default="none")
    ] = None,
    features: Annotated[
        list[Path] | None,
        typer.Option(help="Store of image features: one for all runs, or one for each.", show_default="none"),
    ] = None,
    text_features: Annotated[
        list[Path] | None,
        typer.Option(help="Store of caption features: one for all runs, or one for each.", show_default="none"),
    ] = None,
    option: ProtocolOptions = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="Metrics to show, such as i2t.map_at_r,t2i.map_at_r.", show_default="recalls and RSUM"
        ),
    ] = None,
    folder_labels: FolderLabels = False,
    separate: Annotated[
        bool, typer.Option("--separate", help="Give what was measured differently a table of its own.")
    ] = False,
    form: Annotated[str, typer.Option("--format", help="table, markdown or latex.")] = "table",
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.", show_default="none")] = None,
) -> None:
    """Compare models: recalls both ways, RSUM with its interval, best and second, and what is significantly worse.

    All rows of a table were measured alike, and its stamp says how. Models are tested against the best of each column,
    item by item; an evaluation from a file has no values to test.
    """
    if form not in FORMATS:
        raise ConfigError(f"--format takes {', '.join(FORMATS)}; got {form!r}. For JSON there is --json.")
    from polysem.evaluation.reports.compare import COLUMNS, compare, compare_separately, evaluate_all
    from polysem.evaluation.reports.tables import as_rich

    stores = [
        _one_each(paths, len(runs), name)
        for paths, name in ((features, "--features"), (text_features, "--text-features"))
    ]
    collection = None if data is None else open_data(data, folder_labels)
    chosen = find_protocol(protocol, option)
    with ProgressBar(quiet=as_json) as progress:
        evaluations = evaluate_all(
            runs, collection, *stores, protocol=chosen, split=split, rescore=rescore, progress=progress
        )
    shown = COLUMNS if columns is None else tuple(columns.replace(" ", "").split(","))
    tables = compare_separately(evaluations, shown) if separate else [compare(evaluations, shown)]
    console = new_console()
    if out is not None:
        _write(out, _text(tables, form, as_json))
        typer.echo(f"Wrote {out}.", err=True)
    elif as_json or form != "table" or not console.is_terminal:
        typer.echo(_text(tables, form, as_json), nl=False)
    else:
        for table in tables:
            console.print(as_rich(table))


def _one_each(paths: list[Path] | None, runs: int, option: str) -> list[Path | None]:
    if paths is not None and len(paths) not in (1, runs):
        raise InputError(f"{option} was given {len(paths)} times for {runs} runs. Give one for all, or one for each.")
    return [None] * runs if paths is None else [*paths] * (runs // len(paths))


def _text(tables: list[Comparison], form: str, as_json: bool) -> str:
    from polysem.evaluation.reports import tables as draw

    if as_json:
        return json.dumps({"tables": [draw.as_dict(table) for table in tables]}, indent=2, ensure_ascii=False) + "\n"
    render = {"markdown": draw.as_markdown, "latex": draw.as_latex, "table": draw.as_plain}[form]
    return "\n".join(render(table) for table in tables)


def _write(out: Path, text: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_write.write_text(out, text)
    except OSError as error:
        raise InputError(f"Cannot write {out}: {error.strerror or error}.") from None
