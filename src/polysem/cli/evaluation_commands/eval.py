"""`polysem eval`: stamped metrics of a model, a run or a score matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.common import (
    AsJson,
    Data,
    FolderLabels,
    ProgressBar,
    ProtocolOptions,
    find_protocol,
    new_console,
    open_data,
    print_json,
)
from polysem.errors import InputError

if TYPE_CHECKING:
    from polysem.evaluation import Evaluation

NAMES = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "median_rank": "median rank",
    "mean_rank": "mean rank",
    "mrr": "MRR",
    "map_at_r": "mAP@R",
    "r_precision": "R-precision",
    "ndcg10": "NDCG@10",
}
"""Rows of the table, in this order; other metrics follow."""
HIDDEN = ("recall1", "recall5", "recall10", "queries", "positives")
"""In the JSON alone; so is mAP where there is mAP@R, which says the same of fewer ranks."""


def eval_command(
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|RUN|SCORES.npy …", help="A model folder, a run's folder, or a matrix of images × captions."
        ),
    ],
    data: Data,
    protocol: Annotated[
        str,
        typer.Option("--protocol", help="How to measure; see `polysem parts protocols`. pairs takes any data."),
    ] = "pairs",
    split: Annotated[
        str | None, typer.Option("--split", help="Which split to search.", show_default="the protocol's: test")
    ] = None,
    ensemble: Annotated[
        str | None, typer.Option("--ensemble", help="mean: average the scores of several models.", show_default="none")
    ] = None,
    rescore: Annotated[
        str | None,
        typer.Option(
            "--rescore",
            help="dual-softmax, query-bank or csls: correct scores by those of all queries. The stamp says so.",
            show_default="none",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="Of dual-softmax and query-bank.")] = 0.05,
    option: ProtocolOptions = None,
    features: Annotated[
        list[Path] | None,
        typer.Option("--features", help="Store of image features; for ensembles, one each.", show_default="none"),
    ] = None,
    text_features: Annotated[
        list[Path] | None, typer.Option("--text-features", help="Store of caption features.", show_default="none")
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option("--embeddings", help="File to keep embeddings in, used if it is there.", show_default="none"),
    ] = None,
    trec: Annotated[
        Path | None,
        typer.Option("--trec", help="Write rankings and qrels as TREC files to this folder.", show_default="none"),
    ] = None,
    folder_labels: FolderLabels = False,
    as_json: AsJson = False,
) -> None:
    """Measure retrieval under a protocol, which is stamped on every number."""
    from polysem.evaluation import evaluate
    from polysem.evaluation.rescoring import Rescoring

    if len(subjects) > 1 and ensemble is None:
        raise InputError(
            f"{len(subjects)} models were given. Average them with --ensemble mean, or compare them with "
            f"`polysem compare {' '.join(subjects)}`."
        )
    if ensemble not in (None, "mean"):
        raise InputError(f"--ensemble knows mean, got {ensemble!r}.")
    chosen = find_protocol(protocol, option)
    with ProgressBar(quiet=as_json) as progress:
        result = evaluate(
            list(subjects),
            open_data(data, folder_labels),
            protocol=chosen,
            split=split,
            rescore=None if rescore is None else Rescoring(rescore, temperature),  # type: ignore[arg-type]
            features=list(features) if features else None,
            text_features=list(text_features) if text_features else None,
            embeddings=embeddings,
            trec_folder=trec,
            progress=progress,
        )
    if as_json:
        print_json(result.as_dict())
    else:
        _show(result)


def _show(result: Evaluation) -> None:
    """The metrics as a table, a column for each direction, and under it the stamp."""
    from rich.table import Table
    from rich.text import Text

    from polysem.evaluation.reports.tables import WAYS, metric_name

    console, metrics = new_console(), dict(result.metrics)
    ways = [way for way in WAYS if isinstance(metrics.get(way), dict)]
    if ways:
        there = dict.fromkeys(key for way in ways for key in metrics[way])
        rows = [key for key in NAMES if key in there]
        rows += [k for k in there if k not in (*NAMES, *HIDDEN) and not isinstance(metrics[ways[0]].get(k), dict)]
        if "map_at_r" in rows:
            rows = [key for key in rows if key != "map"]
        table = Table("", *(WAYS[way] for way in ways), title=Text(result.model, style="bold"), title_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        for key in rows:
            name = NAMES.get(key) or metric_name(key).replace("P@", "precision@")
            table.add_row(name, *(_cell(result, way, key) for way in ways))
        console.print(table)
    for way in ways:
        if isinstance(metrics[way].get("hubness"), dict):
            console.print(f"hubness, {WAYS[way]}: {_list_metrics(metrics[way]['hubness'])}", soft_wrap=True)
    for key, value in metrics.items():
        if isinstance(value, (int, float)):
            console.print(f"{'RSUM' if key == 'rsum' else key} {value:.1f}{_interval(result, key)}")
        elif isinstance(value, dict) and key not in ways:
            console.print(f"{key}: {_list_metrics(value)}", soft_wrap=True)
    console.print(Text(f"[{result.stamp}]", style="dim"), soft_wrap=True)


def _list_metrics(values: Mapping[str, Any]) -> str:
    """Metrics that are in no table, by their path."""
    from polysem.evaluation.result import flatten_metrics

    return ", ".join(
        f"{path} {value:.3g}" if isinstance(value, float) else f"{path} {value}"
        for path, value in flatten_metrics(values).items()
        if path.rpartition(".")[2] not in HIDDEN
    )


def _cell(result: Evaluation, way: str, key: str) -> str:
    value = result.metrics[way].get(key)
    return "" if value is None else f"{value:.1f}{_interval(result, f'{way}.{key}')}"


def _interval(result: Evaluation, path: str) -> str:
    interval = result.intervals.get(path)
    return "" if interval is None else f"  [dim]{interval[0]:.1f}–{interval[1]:.1f}[/]"
