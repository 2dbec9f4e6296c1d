"""`polysem train`: a recipe and a collection to a model folder."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.common import AsJson, FolderLabels, ProgressBar, open_data, print_facts, print_json
from polysem.errors import ConfigError

if TYPE_CHECKING:
    from polysem.training import TrainingResult
    from polysem.training.monitoring.display import TerminalDisplay

ON_COLLAPSE = ("stop", "warn")
LOG_SECONDS = 30.0
"""Between two lines where there is no terminal to draw a bar on, such as a log file."""


RecipeName = Annotated[str, typer.Argument(help="Name of a recipe (`polysem recipes`), or the path of a YAML.")]
TrainingData = Annotated[Path, typer.Option(help="The collection: a folder, or the file that describes it.")]
ImageStore = Annotated[
    Path | None, typer.Option("--features", help="Features of the images, made if absent.", show_default="in the cache")
]
TextStore = Annotated[
    Path | None,
    typer.Option("--text-features", help="Features of the captions, made if absent.", show_default="in the cache"),
]
OnCollapse = Annotated[str, typer.Option(help="What to do with a run that collapses or diverges: stop or warn.")]
Tracker = Annotated[str, typer.Option(help="A tracker of accelerate by name, or none.")]


def train_command(
    recipe: RecipeName,
    data: TrainingData,
    out: Annotated[Path, typer.Option(help="Folder of the run. One begun earlier is continued.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH.TO.KEY=VALUE", help="Change the recipe; repeatable.", show_default="none"),
    ] = None,
    features: ImageStore = None,
    text_features: TextStore = None,
    folder_labels: FolderLabels = False,
    on_collapse: OnCollapse = "warn",
    tracker: Tracker = "tensorboard",
    as_json: AsJson = False,
) -> None:
    """Train a model. Stopped at any moment, the same command goes on from there, to the very same weights.

    OUT becomes a model folder for polysem.load(), with metrics.jsonl, report.html and the resolved recipe.yaml. Under
    `accelerate launch` or `torchrun` the processes share each batch and all its negatives.
    """
    if on_collapse not in ON_COLLAPSE:
        raise ConfigError(f"--on-collapse takes stop or warn, got {on_collapse!r}.")
    from polysem import recipes
    from polysem.training import train

    loaded = recipes.load(recipe, settings or ())
    try:
        result = train(
            loaded,
            open_data(data, folder_labels),
            out,
            features=features,
            text_features=text_features,
            on_collapse=on_collapse,  # type: ignore[arg-type]
            tracker=None if tracker == "none" else tracker,
            show=TrainingDisplay(),
        )
    except KeyboardInterrupt:
        typer.echo(f"\nInterrupted. {out} holds a checkpoint: run the same command to go on.", err=True)
        sys.exit(130)
    if os.environ.get("RANK", "0") != "0":  # the processes have parted by now, only their names are left
        return
    if as_json:
        print_json({**asdict(result), "run": str(result.run)})
    else:
        _show(result)


class TrainingDisplay(ProgressBar):
    """Progress on stderr as `train` reports it: bars for features, then the live display of the training."""

    def __init__(self) -> None:
        super().__init__(log_seconds=LOG_SECONDS)

    def features(self, what: str, done: int, total: int) -> None:
        stage = f"features of {what}"
        if done < total or stage in self.stages:  # else they are there already
            self(stage, done, total)

    def begin(self, title: str, total: int, step: int, best: dict[str, Any] | None) -> TerminalDisplay:
        from polysem import distributed
        from polysem.training.monitoring.display import TerminalDisplay

        self.close()  # two that draw at once spoil each other
        live = TerminalDisplay(title, total, enabled=distributed.rank() == 0)
        if step:
            live.resume(step, best)
        return live


def _show(result: TrainingResult) -> None:
    rows = [
        ("Folder", str(result.run)),
        ("Steps", f"{result.steps:,}" + (f" (from {result.resumed_from:,} on)" if result.resumed_from else "")),
        ("Time", f"{result.seconds / 60:.1f} min"),
    ]
    if result.best:
        best = result.best
        rows.append(("Validation RSUM", f"{best['rsum']:.1f} at step {best['step']:,}"))
        for way, name in (("i2t", "Image to text"), ("t2i", "Text to image")):
            rows.append((name, "  ".join(f"R@{key[1:]} {value:.1f}" for key, value in best[way].items())))
        for name, values in best.get("labels", {}).items():
            rows.append((f"By labels, {name}", "  ".join(f"{side} {value:.1f}" for side, value in values.items())))
        rows += [(f"log variance, {side}s", f"{value:.2f}") for side, value in best.get("log_variance", {}).items()]
    rows.append(("Protocol", result.protocol))
    if result.left_out:
        first = [*result.left_out[:3], *(["…"] if len(result.left_out) > 3 else [])]
        rows.append(("Left out", f"{len(result.left_out)} item(s) that cannot be read\n" + "\n".join(first)))
    print_facts("Run", rows)
    typer.echo(f"polysem.load({str(result.run)!r}) loads the model; {result.run / 'report.html'} shows the curves.")
