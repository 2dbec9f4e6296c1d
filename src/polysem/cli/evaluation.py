"""`polysem eval`, `compare` and `cost`: what models find, which is better, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from polysem import atomic_write
from polysem.cli.options import AsJson, Data, FolderLabels, ProtocolOptions, find_protocol, open_data, option
from polysem.cli.output import ProgressBar, new_console, new_table, print_json
from polysem.errors import ConfigError, InputError

if TYPE_CHECKING:
    from rich.text import Text

    from polysem.evaluation import Evaluation
    from polysem.evaluation.cost import Cost

SHOWN_FIRST = ("r1", "r5", "r10", "median_rank", "mean_rank", "mrr", "map_at_r", "r_precision", "ndcg10")
"""Rows of the table, in this order; other metrics follow."""
HIDDEN = ("recall1", "recall5", "recall10", "queries", "positives")
"""In the JSON alone; so is mAP where there is mAP@R, which says the same of fewer ranks."""
FORMATS = ("table", "markdown", "latex")

SearchedSplit = Annotated[str | None, option("Which split to search.", default="the protocol's: test")]


def eval_command(
    subjects: Annotated[list[str], Argument(metavar="MODEL …", help="Models, runs or score matrices (.npy).")],
    data: Data,
    protocol: Annotated[str, Option(help="How to measure: see `polysem parts protocols`.")] = "pairs",
    split: SearchedSplit = None,
    ensemble: Annotated[str | None, option("mean: average the scores of several models.")] = None,
    rescore: Annotated[str | None, option("Correct scores by all queries: dual-softmax, query-bank or csls.")] = None,
    temperature: Annotated[float, Option(help="Of dual-softmax and query-bank.")] = 0.05,
    option: ProtocolOptions = None,
    features: Annotated[list[Path] | None, option("Store of image features; for ensembles, one each.")] = None,
    text_features: Annotated[list[Path] | None, option("Store of caption features.")] = None,
    embeddings: Annotated[Path | None, option("File to keep embeddings in, used if it is there.")] = None,
    trec: Annotated[Path | None, option("Write rankings and qrels as TREC files to this folder.")] = None,
    folder_labels: FolderLabels = False,
    as_json: AsJson = False,
) -> None:
    """Measure retrieval under a protocol, which is stamped on every number."""
    from polysem.evaluation import evaluate
    from polysem.evaluation.rescoring import Rescoring

    if len(subjects) > 1 and ensemble is None:
        compared = f"`polysem compare {' '.join(subjects)}`"
        raise InputError(f"{len(subjects)} models were given. Add --ensemble mean to average them, or use {compared}.")
    if ensemble not in (None, "mean"):
        raise InputError(f"--ensemble takes mean, got {ensemble!r}.")
    options: dict[str, Any] = {"protocol": find_protocol(protocol, option), "split": split}
    options["rescore"] = None if rescore is None else Rescoring(rescore, temperature)  # type: ignore[arg-type]
    options |= {"features": features or None, "text_features": text_features or None}
    with ProgressBar(quiet=as_json) as progress:
        options |= {"embeddings": embeddings, "trec_folder": trec, "progress": progress}
        result = evaluate(list(subjects), open_data(data, folder_labels), **options)
    if as_json:
        print_json(result.as_dict())
    else:
        _show_metrics(result)


def _show_metrics(result: Evaluation) -> None:
    """The metrics as a table, a column for each direction, and under it the stamp."""
    from polysem.evaluation.reports.tables import WAYS, metric_name

    console, metrics = new_console(), dict(result.metrics)
    ways = [way for way in WAYS if isinstance(metrics.get(way), dict)]
    if ways:
        there = dict.fromkeys(key for way in ways for key in metrics[way])
        rows = [key for key in SHOWN_FIRST if key in there]
        rows += [k for k in there if k not in (*SHOWN_FIRST, *HIDDEN) and not isinstance(metrics[ways[0]].get(k), dict)]
        if "map_at_r" in rows:
            rows = [key for key in rows if key != "map"]
        table = new_table(result.model, "", *(WAYS[way] for way in ways), align="l" + "r" * len(ways))
        table.title_style = "bold"
        for key in rows:
            name = key.replace("_", " ") if key.endswith("_rank") else metric_name(key)
            name = name.replace("P@", "precision@") if key.startswith("precision") else name
            table.add_row(name, *(_format(result, metrics[way].get(key), f"{way}.{key}") for way in ways))
        console.print(table)
    for way in ways:
        if isinstance(metrics[way].get("hubness"), dict):
            console.print(f"hubness, {WAYS[way]}: {_list_metrics(metrics[way]['hubness'])}", soft_wrap=True)
    for key, value in metrics.items():
        if isinstance(value, (int, float)):
            console.print("RSUM" if key == "rsum" else key, _format(result, value, key))
        elif isinstance(value, dict) and key not in ways:
            console.print(f"{key}: {_list_metrics(value)}", soft_wrap=True)
    console.print(f"[{result.stamp}]", style="dim", soft_wrap=True)


def _list_metrics(values: Mapping[str, Any]) -> str:
    """Metrics that are in no table, by their path."""
    from polysem.evaluation.result import flatten_metrics

    return ", ".join(
        f"{path} {value:.3g}" if isinstance(value, float) else f"{path} {value}"
        for path, value in flatten_metrics(values).items()
        if path.rpartition(".")[2] not in HIDDEN
    )


def _format(result: Evaluation, value: float | None, path: str) -> Text:
    """A metric with its interval, where there is one."""
    from rich.text import Text

    interval = result.intervals.get(path)
    text = Text("" if value is None else f"{value:.1f}")
    return text if value is None or interval is None else text.append(f"  {interval[0]:.1f}–{interval[1]:.1f}", "dim")


def compare_command(
    runs: Annotated[list[str], Argument(metavar="RUN …", help="As for eval, or what `polysem eval --json` wrote.")],
    data: Annotated[Path | None, option("The collection. Only files of `polysem eval` need none.")] = None,
    protocol: Annotated[str, Option(help="How to measure: as for `polysem eval`.")] = "pairs",
    split: SearchedSplit = None,
    rescore: Annotated[str | None, option("dual-softmax, query-bank or csls, for all.")] = None,
    features: Annotated[list[Path] | None, option("Image features: one store for all runs, or one each.")] = None,
    text_features: Annotated[list[Path] | None, option("Caption features: one store, or one each.")] = None,
    option: ProtocolOptions = None,
    columns: Annotated[str | None, option("Metrics, as i2t.map_at_r,t2i.map_at_r.", default="recalls and RSUM")] = None,
    folder_labels: FolderLabels = False,
    separate: Annotated[bool, Option("--separate", help="A table for each way of measuring.")] = False,
    form: Annotated[str, Option("--format", help="table, markdown or latex.")] = "table",
    as_json: AsJson = False,
    out: Annotated[Path | None, option("Write to this file instead.")] = None,
) -> None:
    """Compare models: recalls both ways, RSUM with its interval, best and second, and what is significantly worse.

    All rows of a table were measured alike, and its stamp says how. Models are tested against the best of each column,
    item by item; an evaluation from a file has no values to test.
    """
    if form not in FORMATS:
        raise ConfigError(f"--format takes {', '.join(FORMATS)}; got {form!r}. For JSON there is --json.")
    from polysem.evaluation.reports import tables as draw
    from polysem.evaluation.reports.compare import COLUMNS, compare, compare_separately, evaluate_all

    stores = []
    for name, paths in (("--features", features), ("--text-features", text_features)):
        if paths and len(paths) not in (1, len(runs)):
            given = f"{name} was given {len(paths)} times for {len(runs)} runs."
            raise InputError(f"{given} Give one for all, or one for each.")
        stores.append([*paths] * (len(runs) // len(paths)) if paths else [None] * len(runs))
    collection = None if data is None else open_data(data, folder_labels)
    chosen = find_protocol(protocol, option)
    with ProgressBar(quiet=as_json) as progress:
        evaluations = evaluate_all(
            runs, collection, *stores, protocol=chosen, split=split, rescore=rescore, progress=progress
        )
    shown = COLUMNS if columns is None else tuple(columns.replace(" ", "").split(","))
    tables = compare_separately(evaluations, shown) if separate else [compare(evaluations, shown)]
    console = new_console()
    if out is None and form == "table" and not as_json and console.is_terminal:
        for table in tables:
            console.print(draw.as_rich(table))
        return
    if as_json:
        text = json.dumps({"tables": [draw.as_dict(table) for table in tables]}, indent=2, ensure_ascii=False) + "\n"
    else:
        render = {"markdown": draw.as_markdown, "latex": draw.as_latex, "table": draw.as_plain}[form]
        text = "\n".join(render(table) for table in tables)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_write.write_text(out, text)
    except OSError as error:
        raise InputError(f"Cannot write {out}: {error.strerror or error}.") from None
    typer.echo(f"Wrote {out}.", err=True)


def cost_command(
    models: Annotated[
        list[str], Argument(metavar="MODEL …", help="Folders of models, or recipes, which need no training.")
    ],
    queries: Annotated[int, Option(min=1, help="Queries that are searched for, each way.")] = 1000,
    gallery: Annotated[int, Option(min=1, help="Items that are searched.")] = 5000,
    repeats: Annotated[int, Option(min=1, help="Rounds; times are their medians.")] = 5,
    as_json: AsJson = False,
) -> None:
    """FLOPs, latency, memory and parameters of models, relative to a single-vector model in the same run.

    The first MODEL of one vector per item is what the others are compared with; without one, a bare single vector is
    measured too. Pictures and texts are not needed. Ratios travel between machines, milliseconds do not.
    """
    import torch

    from polysem.evaluation.cost import TOP, cost, find_model

    with ProgressBar(as_json) as progress:
        costs = cost({name: find_model(name) for name in models}, (queries, gallery), repeats, progress=progress)
    threads = torch.get_num_threads()
    if as_json:
        protocol = {"queries": queries, "gallery": gallery, "top": TOP, "repeats": repeats, "threads": threads}
        print_json({**protocol, "models": [asdict(entry) for entry in costs]})
        return
    title = f"Cost, searching {gallery:,} with {queries:,} queries for the top {TOP}"
    table = new_table(title, "", *(entry.name for entry in costs), align="l" + "r" * len(costs))
    rows = [_list_figures(entry) for entry in costs]
    for label in rows[0]:
        table.add_row(label, *(row[label] for row in rows))
    console = new_console()
    console.print(table)
    reference = next(entry.name for entry in costs if entry.is_reference)
    console.print(
        f"× is relative to {reference}, in #OIPs to the slowest. A multiply-add is two FLOPs. "
        f"Times are medians of {repeats} round(s) on {threads} thread(s).",
        soft_wrap=True,
    )
    for entry in costs:
        if entry.assumed:
            assumed = ", ".join(f"{knob}={value}" for knob, value in entry.assumed.items())
            console.print(f"{entry.name} has seen no data; assumed: {assumed}.", soft_wrap=True)


def _list_figures(entry: Cost) -> dict[str, str]:
    """A column of the table: by label."""

    def times(ratio: float | None) -> str:
        """Three digits at the least: models differ by hundredths in parameters, and by hundreds in FLOPs."""
        return "" if ratio is None else f"×{ratio:,.2f}" if ratio < 10 else f"×{ratio:,.1f}"

    image, text = entry.set_sizes
    relative, parameters = entry.relative, entry.parameters
    search = entry.image_to_text + entry.text_to_image
    counts = asdict(parameters) if parameters is not None else {}
    parts = ("trainable", "image_encoder", "image_heads", "text_encoder", "text_heads")
    return {
        "Vectors per image": f"{image} of {entry.dim:,}",
        "Vectors per text": f"{text} of {entry.dim:,}",
        "Similarity": entry.similarity,
        "FLOPs per pair": f"{entry.flops:,} {times(relative.flops)}",
        "Image to text": f"{1000 * entry.image_to_text.wall:,.0f} ms",
        "Text to image": f"{1000 * entry.text_to_image.wall:,.0f} ms",
        "Both": f"{1000 * search.wall:,.0f} ms {times(relative.wall)}",
        "Both, CPU time": f"{1000 * search.cpu:,.0f} ms {times(relative.cpu)}",
        "Bytes per image": f"{entry.image_bytes.float32:,} {times(relative.bytes)}",
        "  in float16": f"{entry.image_bytes.float16:,}",
        "Parameters": f"{counts['total']:,} {times(relative.parameters)}" if counts else "",
        **{f"  {part.replace('_', ' ')}": f"{counts[part]:,}" if counts else "" for part in parts},
        "Images embedded/s": "" if entry.items_per_second is None else f"{entry.items_per_second:,.0f}",
        "#OIPs": times(entry.oips),
    }
