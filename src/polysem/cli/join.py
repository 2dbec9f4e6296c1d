"""`polysem join`: models that were trained apart, as one whose sets hold the vectors of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polysem.cli.progress import stages


def join_command(
    models: Annotated[list[str], typer.Argument(help="Model folders, two or more, over the same frozen encoders.")],
    out: Annotated[Path, typer.Option(help="Folder of the joined model.")],
    alpha: Annotated[float, typer.Option(help="Of the smooth-Chamfer similarity that compares the joined sets.")] = 16,
    small: Annotated[
        bool, typer.Option("--small", help="Write float16, without the weights that an installed package has anyway.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Join models to one: an ensemble in one folder, whose encoders run once.

    Each was trained by itself, from another seed say. Their vectors are the sets of the joined model, and a set is
    better than each of its members as far as these err apart. Measure it: `polysem eval`.
    """
    from polysem.models import join, load

    with stages(quiet=as_json) as advance:
        loaded = []
        for place, model in enumerate(models):
            advance("load", place, len(models))
            loaded.append(load(model))
        joined = join(loaded, {"name": "smooth_chamfer", "alpha": alpha})
        advance("write", 0, 1)
        joined.save(out, small=small)
    images, texts = joined.set_sizes
    if as_json:
        typer.echo(json.dumps({"out": str(out), "set_sizes": [images, texts], "dim": joined.dim}, indent=2))
    else:
        typer.echo(f"{out}: {images} vectors per image, {texts} per text, of width {joined.dim}.")
