"""`polysem explain`, `map` and `diagnose`: look into a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from polysem.cli.options import AsJson, Data, Features, FolderLabels, TextFeatures, open_data, option
from polysem.cli.output import ProgressBar, format_match, new_console, print_json
from polysem.errors import InputError

Split = Annotated[str | None, option("Which split.", default="test, else val")]

_COLOURS = {"bad": "red", "watch": "yellow", "good": "green"}
_SIGNS = {"bad": "✕", "watch": "!", "good": "✓"}


def explain_command(
    model: Annotated[str, Argument(metavar="MODEL", help="A model folder, or a run's.")],
    image: Annotated[
        Path, Argument(metavar="IMAGE", help="A picture or video; or a .npy of its (tokens, dim) features.")
    ],
    caption: Annotated[str, Argument(metavar="CAPTION", help="The sentence whose score is to be explained.")],
    out: Annotated[Path | None, option("A .png, .svg or .pdf file to draw.", default="none, with --json")] = None,
    captions: Annotated[
        Path | None, option("Where to find the captions nearest to each element.", metavar="TXT|DATA")
    ] = None,
    split: Annotated[str | None, option("Of the collection.", default="the image's own, else all")] = None,
    picture: Annotated[Path | None, option("The picture that precomputed features were made of.")] = None,
    boxes: Annotated[Path | None, option("Its regions: a .npy file of (tokens, 4), x0 y0 x1 y1 in pixels.")] = None,
    theme: Annotated[str, Option(help="light or dark.")] = "light",
    as_json: AsJson = False,
) -> None:
    """Show why an image and a caption match: attention or pooling weights on the picture, words, and the score's parts.

    Of a set model: what each element looks at in every iteration, the caption nearest to it, and how much each pair of
    elements contributes. Of a single-vector model: pooling weights, and the tokens behind the winning dimensions. Of a
    model that learned labels: the likeliest of either side.
    """
    if out is None and not as_json:
        raise InputError("Say where to draw it, such as --out why.png, or ask for --json.")
    from polysem.inspection.explain import explain

    options: dict[str, Any] = {"split": split, "picture": picture, "boxes": boxes, "out": out, "theme": theme}
    with ProgressBar(quiet=as_json) as progress:
        explanation = explain(model, image, caption, captions, **options, progress=progress)
    if as_json:
        print_json(explanation.as_dict())
        return
    when = "" if explanation.moment is None else f", best at {explanation.moment.text}"
    match = "" if explanation.match is None else f", match {format_match(explanation.match)}"
    typer.echo(f"{explanation.similarity} score {explanation.score:.4f}{match}{when}. Wrote {out}.")
    if explanation.labels:
        typer.echo(explanation.label_line)


def map_command(
    subject: Annotated[str, Argument(metavar="MODEL|INDEX", help="A model's or run's folder, or an index.")],
    out: Annotated[Path, Option(help="Where to draw it: a page to explore (.html), or .png, .svg or .pdf.")],
    data: Annotated[str | None, option("The collection to show; an index needs none.")] = None,
    split: Split = None,
    method: Annotated[str, Option(help="tsne or pca.")] = "tsne",
    colour: Annotated[str, Option(help="What colours tell: slot or label.")] = "slot",
    pairs: Annotated[bool, Option("--pairs", help="Draw a line from every caption to its image.")] = False,
    limit: Annotated[int, Option(help="Elements to show at most.")] = 20_000,
    seed: Annotated[int, Option(help="Of the random choice of items that are shown.")] = 0,
    features: Features = None,
    text_features: TextFeatures = None,
    folder_labels: FolderLabels = False,
    as_json: AsJson = False,
) -> None:
    """Draw the joint space: a marker for every element of every set, coloured by slot and shaped by modality."""
    from polysem.inspection.map import make_index_points, map_space
    from polysem.search import Index
    from polysem.search.store.schema import NAME

    shown: Any = subject
    if (Path(subject) / NAME).exists():
        if data or split or features or text_features:
            raise InputError(f"{subject} is an index with its own items. Leave out --data, --split and features.")
        with Index.open(subject) as index:
            shown = make_index_points(index, limit)
        if not shown:
            raise InputError(f"The index {subject} is empty. Add items to it first: `polysem add`.")
    options: dict[str, Any] = {"split": split, "features": features, "text_features": text_features}
    options |= {"method": method, "colour": colour, "pairs": pairs, "limit": limit, "seed": seed}
    collection = None if data is None else open_data(data, folder_labels)
    with ProgressBar(quiet=as_json) as progress:
        drawn = map_space(shown, collection, out=out, **options, progress=progress)
    if as_json:
        print_json(drawn.as_dict(), indent=None)
        return
    typer.echo(f"{out}: {len(drawn.positions):,} elements of {len(drawn.items):,} items.")
    for note in drawn.notes:
        typer.echo(note)


def diagnose_command(
    model: Annotated[str, Argument(metavar="MODEL", help="A model's or run's folder.")],
    data: Data,
    out: Annotated[Path | None, option("The report: .html, with its JSON beside it, or .json alone.")] = None,
    split: Split = None,
    features: Features = None,
    text_features: TextFeatures = None,
    groups: Annotated[
        Path | None, option('JSON of super-classes, {"apple": "fruit"}.', default="from the boxes")
    ] = None,
    folder_labels: FolderLabels = False,
    as_json: AsJson = False,
) -> None:
    """Check a model: collapse, unused elements, hubs, gaps, calibration, confusions, attention; with verdicts."""
    from polysem.inspection.diagnose import diagnose

    options: dict[str, Any] = {"features": features, "text_features": text_features, "groups": groups}
    with ProgressBar(quiet=as_json) as progress:
        diagnosis = diagnose(model, open_data(data, folder_labels), out=out, split=split, **options, progress=progress)
    if as_json:
        print_json(diagnosis.as_dict())
        return
    from rich.text import Text

    console = new_console()
    console.print(f"{diagnosis.gallery.name}: {diagnosis.headline}", style="bold")
    console.print(f"[{diagnosis.gallery.summary}]", style="dim")
    for verdict in diagnosis.verdicts:
        console.print(Text(f"{_SIGNS[verdict.level]} {verdict.about}: ", style=_COLOURS[verdict.level]) + verdict.says)
        if verdict.advice:
            console.print(f"  → {verdict.advice}", style="dim")
    for each in diagnosis.left_out:
        console.print(f"left out: {each}", style="dim")
    if out is not None:
        console.print(f"written: {out}")
