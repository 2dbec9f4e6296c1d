"""`polysem eval`: stamped figures of a model, a run or a score matrix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.collections import FolderLabels, opened
from polysem.errors import InputError

if TYPE_CHECKING:
    from polysem.evaluation import Evaluation

NAMES = (
    ("r1", "R@1"),
    ("r5", "R@5"),
    ("r10", "R@10"),
    ("median_rank", "median rank"),
    ("mean_rank", "mean rank"),
    ("mrr", "MRR"),
    ("map_at_r", "mAP@R"),
    ("r_precision", "R-precision"),
    ("ndcg10", "NDCG@10"),
)
HIDDEN = ("recall1", "recall5", "recall10", "queries", "positives")
"""In the JSON alone; so is mAP where there is mAP@R, which says the same of fewer places."""
DIRECTIONS = {"i2t": "image → text", "t2i": "text → image", "i2i": "image → image", "t2t": "text → text"}


def eval_command(
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|RUN|SCORES.npy …", help="A model folder, a run's folder, or a matrix of images × captions."
        ),
    ],
    data: Annotated[str, typer.Option("--data", help="The collection: whatever `polysem data check` can read.")],
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            help="f8k-1k, f30k-1k, coco-5k, coco-1k-5fold, eccv-caption, cxc, labels, labels-tags, video, judgements, "
            "or pairs for any collection.",
        ),
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
            help="dual-softmax, query-bank or csls: let the other queries have a say. The stamp says so.",
            show_default="none",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="Of dual-softmax and query-bank.")] = 0.05,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="An option of the protocol, such as annotations=FILE, k=50 or quirk=NAME; repeatable.",
            show_default="none",
        ),
    ] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure retrieval under a protocol, which is stamped on every number."""
    from polysem.cli.progress import stages
    from polysem.evaluation import evaluate, protocols
    from polysem.evaluation.rescoring import Rescoring

    if len(subjects) > 1 and ensemble is None:
        raise InputError(
            f"{len(subjects)} models were given. Average them with --ensemble mean, or compare them with "
            f"`polysem compare {' '.join(subjects)}`."
        )
    if ensemble not in (None, "mean"):
        raise InputError(f"--ensemble knows mean, got {ensemble!r}.")
    chosen = protocols.find(protocol)
    if option:
        chosen = chosen.with_options(**dict(option_of(given) for given in option))
    with stages(quiet=as_json) as progress:
        found = evaluate(
            list(subjects),
            opened(data, folder_labels),
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
        typer.echo(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
    else:
        show(found)


def option_of(given: str) -> tuple[str, str]:
    key, equals, value = given.partition("=")
    if not equals:
        raise InputError(f"--option takes KEY=VALUE, got {given!r}.")
    return key, value


def show(found: Evaluation) -> None:
    """The figures as a table, a column for each direction, and under it the stamp."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    metrics = dict(found.metrics)
    ways = [name for name in DIRECTIONS if isinstance(metrics.get(name), dict)]
    if ways:
        known = dict(NAMES)
        rows = [key for key in known if any(key in metrics[way] for way in ways)]
        rows += [
            key
            for key in dict.fromkeys(key for way in ways for key in metrics[way])
            if key not in known and key not in HIDDEN and not isinstance(metrics[ways[0]].get(key), dict)
        ]
        if "map_at_r" in rows:
            rows = [key for key in rows if key != "map"]
        table = Table("", *(DIRECTIONS[way] for way in ways), title=Text(found.model, style="bold"))
        table.title_justify = "left"
        for column in table.columns[1:]:
            column.justify = "right"
        for key in rows:
            table.add_row(known.get(key) or _called(key), *(_cell(found, way, key) for way in ways))
        console.print(table)
    for way in ways:
        if isinstance(metrics[way].get("hubness"), dict):
            console.print(f"hubness, {DIRECTIONS[way]}: {', '.join(_leaves(metrics[way]['hubness']))}", soft_wrap=True)
    for key, value in metrics.items():
        if isinstance(value, (int, float)):
            console.print(f"{'RSUM' if key == 'rsum' else key} {value:.1f}{_span(found, key)}")
        elif isinstance(value, dict) and key not in ways:
            console.print(f"{key}: {', '.join(_leaves(value))}", soft_wrap=True)
    console.print(Text(f"[{found.stamp}]", style="dim"), soft_wrap=True)


def _called(key: str) -> str:
    """mAP, NDCG@500, precision@50; another measure by its key."""
    name, cut = re.fullmatch(r"(.*?)(\d*)", key).groups()  # type: ignore[union-attr]
    said = {"map": "mAP", "ndcg": "NDCG", "precision": "precision"}.get(name)
    return key if said is None else f"{said}@{cut}" if cut else said


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Figures that stand in no table, by their path."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        elif key not in HIDDEN:
            yield f"{above}{key} {value:.3g}" if isinstance(value, float) else f"{above}{key} {value}"


def _cell(found: Evaluation, way: str, key: str) -> str:
    value = found.metrics[way].get(key)
    return "" if value is None else f"{value:.1f}{_span(found, f'{way}.{key}')}"


def _span(found: Evaluation, path: str) -> str:
    interval = found.intervals.get(path)
    return "" if interval is None else f"  [dim]{interval[0]:.1f}–{interval[1]:.1f}[/]"
