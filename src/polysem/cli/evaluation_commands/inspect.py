"""`polysem explain`, `map` and `diagnose`: look into a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polysem.cli.common import (
    AsJson,
    Data,
    Features,
    FolderLabels,
    ProgressBar,
    TextFeatures,
    new_console,
    open_data,
    print_json,
)
from polysem.errors import InputError

if TYPE_CHECKING:
    from polysem.inspection.map import MapPoints

Split = Annotated[str | None, typer.Option("--split", help="Which split.", show_default="test, else val")]

_DATABASE = "index.sqlite"
_COLOURS = {"bad": "red", "watch": "yellow", "good": "green"}
_SIGNS = {"bad": "✕", "watch": "!", "good": "✓"}


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
    as_json: AsJson = False,
) -> None:
    """Show why an image and a caption match: attention or pooling weights on the picture, words, and the score's parts.

    Of a set model: what each element looks at in every iteration, the caption nearest to it, and how much each pair of
    elements contributes. Of a single-vector model: pooling weights, and the tokens behind the winning dimensions. Of a
    model that learned labels: the likeliest of either side.
    """
    from polysem.inspection.explain.drawing import check_drawing_path, check_theme, draw

    # Before the work, not after it.
    check_theme(theme)
    if out is not None:
        check_drawing_path(out)
    elif not as_json:
        raise InputError("Say where to draw it, such as --out why.png, or ask for --json.")
    from polysem.inspection.explain import explain

    with ProgressBar(quiet=as_json) as progress:
        explanation = explain(
            model, image, caption, captions, split=split, picture=picture, boxes=boxes, progress=progress
        )
        if out is not None:
            progress("drawing", 0, 1)
            draw(explanation, out, theme)
            progress("drawing", 1, 1)
    if as_json:
        print_json(explanation.as_dict())
        return
    when = "" if explanation.moment is None else f", best at {explanation.moment.text}"
    typer.echo(f"{explanation.similarity} score {explanation.score:.4f}{when}. Wrote {out}.")
    if explanation.labels:
        typer.echo(explanation.label_line)


def map_command(
    subject: Annotated[str, typer.Argument(metavar="MODEL|INDEX", help="A model's or run's folder, or an index.")],
    out: Annotated[
        Path, typer.Option("--out", help="Where to draw it: a page to explore (.html), or .png, .svg or .pdf.")
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", help="The collection to show; an index needs none.", show_default="none"),
    ] = None,
    split: Split = None,
    method: Annotated[str, typer.Option("--method", help="tsne or pca.")] = "tsne",
    colour: Annotated[str, typer.Option("--colour", help="What colours tell: slot or label.")] = "slot",
    pairs: Annotated[bool, typer.Option("--pairs", help="Draw a line from every caption to its image.")] = False,
    limit: Annotated[int, typer.Option("--limit", help="Elements to show at most.")] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the random choice of items that are shown.")] = 0,
    features: Features = None,
    text_features: TextFeatures = None,
    folder_labels: FolderLabels = False,
    as_json: AsJson = False,
) -> None:
    """Draw the joint space: a marker for every element of every set, coloured by slot and shaped by modality."""
    from polysem.inspection.map import map_space
    from polysem.inspection.map.drawing import check_map_path

    check_map_path(out)
    is_index = (Path(subject) / _DATABASE).exists()
    if is_index and (data or split or features or text_features):
        raise InputError(f"{subject} is an index: it holds its items already. Leave out --data, --split and features.")
    with ProgressBar(quiet=as_json) as progress:
        drawn = map_space(
            points_of_index(Path(subject), limit) if is_index else subject,
            None if data is None else open_data(data, folder_labels),
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
        print_json(drawn.as_dict(), indent=None)
        return
    typer.echo(f"{out}: {len(drawn.positions):,} elements of {len(drawn.items):,} items.")
    for note in drawn.notes:
        typer.echo(note)


def points_of_index(folder: Path, limit: int) -> list[MapPoints]:
    """The items of an index. Of a large one, about as many as fit on the map, spread evenly."""
    import numpy as np

    from polysem.inspection.map import MapPoints
    from polysem.search.store import Store

    snapshot = Store.open(folder).snapshot()
    sides = []
    for side in ("image", "text"):
        live = np.flatnonzero(snapshot.mask(side))
        if len(live) > limit:
            live = live[np.arange(limit) * len(live) // limit]
        if len(live):
            items = snapshot.items(side, live)
            sides.append(
                MapPoints(
                    snapshot.vectors(side, live).astype(np.float32),
                    side,
                    [item.id for item in items],
                    [item.caption or item.path or item.id for item in items],
                    [item.labels for item in items],
                    [item.id.partition("#")[0] for item in items],
                )
            )
    if not sides:
        raise InputError(f"The index {folder} is empty. Add items to it first: `polysem add`.")
    return sides


def diagnose_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's or run's folder.")],
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The report: .html, with its JSON beside it, or .json alone.", show_default="none"),
    ] = None,
    split: Split = None,
    features: Features = None,
    text_features: TextFeatures = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            "--groups",
            help='JSON of the labels\' super-classes, {"apple": "fruit", …}, to tell confusions apart.',
            show_default="what the boxes say",
        ),
    ] = None,
    folder_labels: FolderLabels = False,
    as_json: AsJson = False,
) -> None:
    """Check a model: collapse, unused elements, hubs, gaps, calibration, confusions, attention; with verdicts."""
    from polysem.inspection.diagnose import diagnose

    with ProgressBar(quiet=as_json) as progress:
        diagnosis = diagnose(
            model,
            open_data(data, folder_labels),
            out=out,
            split=split,
            features=features,
            text_features=text_features,
            groups=None if groups is None else _read_groups(groups),
            progress=progress,
        )
    if as_json:
        print_json(diagnosis.as_dict())
        return
    from rich.text import Text

    console = new_console()
    console.print(Text(f"{diagnosis.gallery.name}: {diagnosis.headline}", style="bold"))
    console.print(Text(f"[{diagnosis.gallery.described}]", style="dim"))
    for verdict in diagnosis.verdicts:
        console.print(Text(f"{_SIGNS[verdict.level]} {verdict.about}: ", style=_COLOURS[verdict.level]) + verdict.says)
        if verdict.advice:
            console.print(Text(f"  → {verdict.advice}", style="dim"))
    for each in diagnosis.left_out:
        console.print(Text(f"left out: {each}", style="dim"))
    if out is not None:
        console.print(f"written: {out}")


def _read_groups(path: Path) -> dict[str, str]:
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read the super-classes in {path}: {error}.") from None
    if not isinstance(groups, dict) or not all(isinstance(value, str) for value in groups.values()):
        raise InputError(f'{path} must be a JSON object of labels and their super-class, {{"apple": "fruit"}}.')
    return groups
