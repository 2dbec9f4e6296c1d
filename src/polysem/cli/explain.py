"""`polysem explain`: why an image and a caption have the score they have, as a drawing and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def explain_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or a run's.")],
    image: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGE",
            help="A picture or a video; for a model of precomputed features a .npy file of its (tokens, dim).",
        ),
    ],
    caption: Annotated[str, typer.Argument(metavar="CAPTION", help="The sentence whose score is to be explained.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to draw it: a .png, .svg or .pdf file.", show_default="none, with --json"),
    ] = None,
    captions: Annotated[
        Path | None,
        typer.Option(
            "--captions",
            metavar="FILE|DATA",
            help="Find the caption nearest to each element here: a text file with one per line, or a collection.",
            show_default="none",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="Of the collection.", show_default="the image's own, or all if it has none there"),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", help="The picture that precomputed features were made of.", show_default="none"),
    ] = None,
    boxes: Annotated[
        Path | None,
        typer.Option(
            "--boxes",
            help="Where its regions lie: a .npy file of (tokens, 4), x0 y0 x1 y1 in pixels.",
            show_default="none",
        ),
    ] = None,
    theme: Annotated[str, typer.Option("--theme", help="light or dark.")] = "light",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show why an image and a caption match: attention or pooling weights on the picture, words, and the score's parts.

    Of a set model: what each element looks at in every iteration, the caption nearest to it, and how much each pair of
    elements contributes. Of a single-vector model: pooling weights, and the tokens behind the winning dimensions. Of a
    model that learned labels: the likeliest of either side.
    """
    from polysem.errors import InputError
    from polysem.inspection.explain.drawing import check_out, check_theme, draw

    # Before the work, not after it.
    check_theme(theme)
    if out is not None:
        check_out(out)
    elif not as_json:
        raise InputError("Say where to draw it, such as --out why.png, or ask for --json.")
    from polysem.cli.progress import stages
    from polysem.inspection.explain import explain

    with stages(quiet=as_json) as progress:
        found = explain(
            model,
            image,
            caption,
            captions,
            split=split,
            picture=picture,
            boxes=boxes,
            progress=progress,
        )
        if out is not None:
            progress("drawing", 0, 1)
            draw(found, out, theme)
            progress("drawing", 1, 1)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        when = "" if found.moment is None else f", best at {found.moment.text}"
        typer.echo(f"{found.similarity} score {found.score:.4f}{when}. Wrote {out}.")
        if found.labels:
            from polysem.inspection.explain.panels import told_labels

            typer.echo(told_labels(found))
