"""`polysem compare`: the papers' table of several models, measured alike."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polysem import atomic_write
from polysem.cli.collections import FolderLabels, opened
from polysem.errors import ConfigError, InputError

if TYPE_CHECKING:
    from polysem.data.collection import Collection
    from polysem.evaluation.protocols import Protocol
    from polysem.evaluation.reports.compare import Comparison
    from polysem.evaluation.result import Evaluation

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
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the protocol; repeatable.", show_default="none"),
    ] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.", show_default="none")] = None,
) -> None:
    """Compare models: recalls both ways, RSUM with its interval, best and second, and what is significantly worse.

    All rows of a table were measured alike, and its stamp says how. Models are tested against the best of each column,
    item by item; an evaluation from a file has no values to test.
    """
    if form not in FORMATS:
        raise ConfigError(f"--format takes {', '.join(FORMATS)}; got {form!r}. For JSON there is --json.")
    from polysem.evaluation.reports.compare import COLUMNS, compare, compare_separately

    stores = [
        _one_each(given, len(runs), option)
        for given, option in ((features, "--features"), (text_features, "--text-features"))
    ]
    collection = None if data is None else opened(data, folder_labels)
    chosen = _protocol(protocol, option or [])
    evaluations = _evaluations(runs, collection, chosen, split, rescore, stores, quiet=as_json)
    shown = COLUMNS if columns is None else tuple(columns.replace(" ", "").split(","))
    tables = compare_separately(evaluations, shown) if separate else [compare(evaluations, shown)]
    if out is None:
        _show(tables, form, as_json)
    else:
        _write(out, _text(tables, form, as_json))
        typer.echo(f"Wrote {out}.", err=True)


def _evaluations(
    runs: list[str],
    collection: Collection | None,
    protocol: Protocol,
    split: str | None,
    rescore: str | None,
    stores: list[list[Path | None]],
    quiet: bool,
) -> list[Evaluation]:
    from polysem.cli.progress import stages
    from polysem.evaluation import evaluate
    from polysem.evaluation.result import read_evaluation

    measured = [run for run in runs if not run.endswith(".json")]
    if collection is None and measured:
        raise InputError(f"--data is missing: it is what {measured[0]} is to be measured on.")
    found = []
    with stages(quiet=quiet) as progress:
        for run, features, text_features in zip(runs, *stores, strict=True):
            if collection is None or run.endswith(".json"):
                found.append(read_evaluation(run))
            else:
                measure = partial(evaluate, protocol=protocol, split=split, rescore=rescore, progress=progress)
                found.append(measure(run, collection, features=features, text_features=text_features, intervals=False))
    names = [each.model for each in found]
    # A name that two share tells nobody which is which: what the user typed does.
    return [
        replace(each, model=run) if names.count(each.model) > 1 else each for run, each in zip(runs, found, strict=True)
    ]


def _protocol(name: str, options: list[str]) -> Protocol:
    from polysem.cli.eval import option_of
    from polysem.evaluation import protocols

    return protocols.find(name).with_options(**dict(option_of(given) for given in options))


def _one_each(given: list[Path] | None, runs: int, option: str) -> list[Path | None]:
    if given is not None and len(given) not in (1, runs):
        raise InputError(f"{option} was given {len(given)} times for {runs} runs. Give one for all, or one for each.")
    return [None] * runs if given is None else [*given] * (runs // len(given))


def _show(tables: list[Comparison], form: str, as_json: bool) -> None:
    from rich.console import Console

    from polysem.evaluation.reports.tables import as_rich

    console = Console(highlight=False)
    if as_json or form != "table" or not console.is_terminal:
        typer.echo(_text(tables, form, as_json), nl=False)
    else:
        for table in tables:
            console.print(as_rich(table))


def _text(tables: list[Comparison], form: str, as_json: bool) -> str:
    from polysem.evaluation.reports import tables as draw

    if as_json:
        return json.dumps({"tables": [draw.as_dict(table) for table in tables]}, indent=2, ensure_ascii=False) + "\n"
    drawn = {"markdown": draw.as_markdown, "latex": draw.as_latex, "table": draw.as_plain}[form]
    return "\n".join(drawn(table) for table in tables)


def _write(out: Path, text: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_write.write_text(out, text)
    except OSError as error:
        raise InputError(f"Cannot write {out}: {error.strerror or error}.") from None
