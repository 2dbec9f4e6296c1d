"""`polysem map`: the joint space of a model, or of an index, in two dimensions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polysem.cli.collections import FolderLabels, opened
from polysem.errors import InputError

if TYPE_CHECKING:
    from polysem.inspection.map import Points

_DATABASE = "index.sqlite"


def map_command(
    subject: Annotated[str, typer.Argument(metavar="MODEL|INDEX", help="A model's or run's folder, or an index.")],
    out: Annotated[
        Path, typer.Option("--out", help="Where to draw it: a page to explore (.html), or .png, .svg or .pdf.")
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", help="The collection to show; an index needs none.", show_default="none"),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="Which split.", show_default="test, else val")] = None,
    method: Annotated[str, typer.Option("--method", help="tsne or pca.")] = "tsne",
    colour: Annotated[str, typer.Option("--colour", help="What colours tell: slot or label.")] = "slot",
    pairs: Annotated[bool, typer.Option("--pairs", help="Draw a line from every caption to its image.")] = False,
    limit: Annotated[int, typer.Option("--limit", help="Elements to show at most.")] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the lot that decides which items are shown.")] = 0,
    features: Annotated[
        Path | None, typer.Option("--features", help="Store of image features.", show_default="none")
    ] = None,
    text_features: Annotated[
        Path | None, typer.Option("--text-features", help="Store of caption features.", show_default="none")
    ] = None,
    folder_labels: FolderLabels = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every element's place as JSON.")] = False,
) -> None:
    """Draw the joint space: a marker for every element of every set, coloured by slot and shaped by modality."""
    from polysem.cli.progress import stages
    from polysem.inspection.map import map_space
    from polysem.inspection.map.draw import checked

    checked(out)
    is_index = (Path(subject) / _DATABASE).exists()
    if is_index and (data or split or features or text_features):
        raise InputError(f"{subject} is an index: it holds its items already. Leave out --data, --split and features.")
    with stages(quiet=as_json) as progress:
        found = map_space(
            points_of_index(Path(subject), limit) if is_index else subject,
            None if data is None else opened(data, folder_labels),
            out=out,
            split=split,
            method=method,  # type: ignore[arg-type]
            colour=colour,  # type: ignore[arg-type]
            pairs=pairs,
            limit=limit,
            seed=seed,
            features=features,
            text_features=text_features,
            progress=progress,
        )
    if as_json:
        typer.echo(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        typer.echo(f"{out}: {len(found.positions):,} elements of {len(found.items):,} items.")
        for note in found.notes:
            typer.echo(note)


def points_of_index(folder: Path, limit: int) -> list[Points]:
    """The items of an index. Of a large one, about as many as fit on the map, spread evenly."""
    import numpy as np

    from polysem.inspection.map import Points
    from polysem.search.store import Store

    snapshot = Store.open(folder).snapshot()
    found = []
    for side in ("image", "text"):
        live = np.flatnonzero(snapshot.mask(side))
        if len(live) > limit:
            live = live[np.arange(limit) * len(live) // limit]
        if len(live):
            items = snapshot.items(side, live)
            found.append(
                Points(
                    snapshot.vectors(side, live).astype(np.float32),
                    side,
                    [item.id for item in items],
                    [item.caption or item.path or item.id for item in items],
                    [item.labels for item in items],
                    [item.id.partition("#")[0] for item in items],
                )
            )
    if not found:
        raise InputError(f"The index {folder} is empty. Add items to it first: `polysem add`.")
    return found
