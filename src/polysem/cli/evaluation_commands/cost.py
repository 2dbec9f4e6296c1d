"""`polysem cost`: what models cost, beside one vector per item."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from polysem.cli.common import AsJson, ProgressBar, new_console, print_json

if TYPE_CHECKING:
    from polysem.evaluation.cost import Cost


def cost_command(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="Folders of models, or recipes: untrained they cost the same."),
    ],
    queries: Annotated[int, typer.Option(min=1, help="Queries that are searched for, each way.")] = 1000,
    gallery: Annotated[int, typer.Option(min=1, help="Items that are searched.")] = 5000,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; times are their medians.")] = 5,
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
    protocol = {"queries": queries, "gallery": gallery, "top": TOP, "repeats": repeats, "threads": threads}
    if as_json:
        print_json({**protocol, "models": [asdict(entry) for entry in costs]})
    else:
        _show(costs, protocol)


def _show(costs: list[Cost], protocol: dict[str, int]) -> None:
    from rich.table import Table
    from rich.text import Text

    title = (
        f"Cost, searching {protocol['gallery']:,} with {protocol['queries']:,} queries for the top {protocol['top']}"
    )
    table = Table("", title=title, title_justify="left")
    for entry in costs:
        table.add_column(Text(entry.name), justify="right")
    rows = [_figures(entry) for entry in costs]
    for label in rows[0]:
        table.add_row(label, *(row[label] for row in rows))
    console = new_console()
    console.print(table)
    reference = next(entry.name for entry in costs if entry.is_reference)
    notes = [
        f"× is relative to {reference}, in #OIPs to the slowest. A multiply-add is two FLOPs. "
        f"Times are medians of {protocol['repeats']} round(s) on {protocol['threads']} thread(s)."
    ]
    for entry in costs:
        if entry.assumed:
            assumed = ", ".join(f"{knob}={value}" for knob, value in entry.assumed.items())
            notes.append(f"{entry.name} has seen no data; assumed: {assumed}.")
    for note in notes:
        console.print(Text(note), soft_wrap=True)


def _figures(entry: Cost) -> dict[str, str]:
    """A column of the table: by label."""
    image, text = entry.set_sizes
    relative, parameters = entry.relative, entry.parameters
    search = entry.image_to_text + entry.text_to_image
    figures = {
        "Vectors per image": f"{image} of {entry.dim:,}",
        "Vectors per text": f"{text} of {entry.dim:,}",
        "Similarity": entry.similarity,
        "FLOPs per pair": f"{entry.flops:,} {_times(relative.flops)}",
        "Image to text": f"{1000 * entry.image_to_text.wall:,.0f} ms",
        "Text to image": f"{1000 * entry.text_to_image.wall:,.0f} ms",
        "Both": f"{1000 * search.wall:,.0f} ms {_times(relative.wall)}",
        "Both, CPU time": f"{1000 * search.cpu:,.0f} ms {_times(relative.cpu)}",
        "Bytes per image": f"{entry.image_bytes.float32:,} {_times(relative.bytes)}",
        "  in float16": f"{entry.image_bytes.float16:,}",
    }
    counts = asdict(parameters) if parameters is not None else {}
    figures["Parameters"] = f"{counts.pop('total'):,} {_times(relative.parameters)}" if counts else ""
    for part in ("trainable", "image_encoder", "image_heads", "text_encoder", "text_heads"):
        figures[f"  {part.replace('_', ' ')}"] = f"{counts[part]:,}" if counts else ""
    figures["Images embedded/s"] = "" if entry.items_per_second is None else f"{entry.items_per_second:,.0f}"
    figures["#OIPs"] = _times(entry.oips)
    return figures


def _times(ratio: float | None) -> str:
    """Three digits at the least: models differ by hundredths in parameters, and by hundreds in FLOPs."""
    if ratio is None:
        return ""
    return f"×{ratio:,.2f}" if ratio < 10 else f"×{ratio:,.1f}"
