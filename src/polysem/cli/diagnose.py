"""`polysem diagnose`: whether a model is sound, on one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polysem.cli.collections import FolderLabels, opened
from polysem.errors import InputError

_COLOURS = {"bad": "red", "watch": "yellow", "good": "green"}
_SIGNS = {"bad": "✕", "watch": "!", "good": "✓"}


def diagnose_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's or run's folder.")],
    data: Annotated[str, typer.Option("--data", help="The collection: whatever `polysem data check` can read.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The report: .html, with its JSON beside it, or .json alone.", show_default="none"),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="Which split.", show_default="test, else val")] = None,
    features: Annotated[
        Path | None, typer.Option("--features", help="Store of image features.", show_default="none")
    ] = None,
    text_features: Annotated[
        Path | None, typer.Option("--text-features", help="Store of caption features.", show_default="none")
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            "--groups",
            help='JSON of the labels\' super-classes, {"apple": "fruit", …}, to tell confusions apart.',
            show_default="what the boxes say",
        ),
    ] = None,
    folder_labels: FolderLabels = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON and nothing else.")] = False,
) -> None:
    """Look a model over: collapse, starved elements, hubs, gaps, calibration, confusions, attention; with verdicts."""
    from polysem.cli.progress import stages
    from polysem.inspection.diagnose import diagnose

    with stages(quiet=as_json) as progress:
        found = diagnose(
            model,
            opened(data, folder_labels),
            out=out,
            split=split,
            features=features,
            text_features=text_features,
            groups=None if groups is None else _groups(groups),
            progress=progress,
        )
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(f"{found.gallery.name}: {found.headline}", style="bold"))
    console.print(Text(f"[{found.gallery.described}]", style="dim"))
    for verdict in found.verdicts:
        console.print(Text(f"{_SIGNS[verdict.level]} {verdict.about}: ", style=_COLOURS[verdict.level]) + verdict.says)
        if verdict.advice:
            console.print(Text(f"  → {verdict.advice}", style="dim"))
    for each in found.left_out:
        console.print(Text(f"left out: {each}", style="dim"))
    if out is not None:
        console.print(f"written: {out}")


def _groups(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read the super-classes in {path}: {error}.") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InputError(f'{path} must be a JSON object of labels and their super-class, {{"apple": "fruit"}}.')
    return found
