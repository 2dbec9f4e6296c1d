"""`polysem data make`: data sets that need no download."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


def make_emoji_scenes_command(
    out: Annotated[Path, typer.Option("--out", help="The folder to make; new or empty.")],
    items: Annotated[int, typer.Option("--items", help="How many pictures.", min=1)] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Another number, other pictures.", min=0)] = 0,
    size: Annotated[int, typer.Option("--size", help="Width and height of the pictures in pixels.")] = 224,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Make pictures of several emoji, five captions each, with labels, boxes and splits."""
    from polysem.synthetic.scenes.make import make_emoji_scenes

    with _bar("emoji scenes", items) as progress:
        made = make_emoji_scenes(out, items, seed, size, progress)
    if as_json:
        answer = {"dataset": "emoji-scenes", "path": str(made), "items": items, "seed": seed, "size": size}
        typer.echo(json.dumps(answer, indent=2))
    else:
        typer.echo(f"{made}: {items} emoji scenes, {5 * items} captions")


def make_emoji_clips_command(
    out: Annotated[Path, typer.Option("--out", help="The folder to make; new or empty.")],
    items: Annotated[int, typer.Option("--items", help="How many clips.", min=1)] = 600,
    seed: Annotated[int, typer.Option("--seed", help="Another number, other clips.", min=0)] = 0,
    size: Annotated[int, typer.Option("--size", help="Width and height of the clips in pixels, even.")] = 192,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Make short videos of moving emoji, five captions each, with splits and the truth on every moment."""
    from polysem.synthetic.clips.make import make_emoji_clips

    with _bar("emoji clips", items) as progress:
        made = make_emoji_clips(out, items, seed, size, progress)
    if as_json:
        answer = {"dataset": "emoji-clips", "path": str(made), "items": items, "seed": seed, "size": size}
        typer.echo(json.dumps(answer, indent=2))
    else:
        typer.echo(f"{made}: {items} emoji clips, {5 * items} captions")


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Shows how far it is on stderr, so that stdout holds the answer and nothing else."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, _: bar.update(task, completed=done)
