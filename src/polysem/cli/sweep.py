"""`polysem sweep`: a recipe with other values of some of its keys, and the curve that comes of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polysem.cli.common import (
    AsJson,
    FolderLabels,
    ProtocolOptions,
    find_protocol,
    new_console,
    open_data,
    print_json,
)
from polysem.cli.train import (
    ON_COLLAPSE,
    ImageStore,
    OnCollapse,
    RecipeName,
    TextStore,
    Tracker,
    TrainingData,
    TrainingDisplay,
)
from polysem.errors import ConfigError

if TYPE_CHECKING:
    from polysem.training.sweep import Sweep, SweepObserver, SweepRun

LOWER_IS_BETTER = ("median_rank", "mean_rank")


def sweep_command(
    recipe: RecipeName,
    data: TrainingData,
    out: Annotated[Path, typer.Option(help="Folder of the sweep. One begun earlier is continued.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH.TO.KEY=A,B,C",
            help="Values of a key, written as in YAML; repeatable: several make a grid. One value changes the recipe.",
            show_default="none",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="0,1,2", help="Train each with these seeds.", show_default="the recipe's")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="What to show, such as i2t.ndcg50,micro_f1.image.",
            show_default="what picks the checkpoint: rsum, or NDCG both ways if labels are learned",
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Measure each run like `polysem eval`.", show_default="the validation of its training"),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which split to measure on, with --protocol.", show_default="test")
    ] = None,
    option: ProtocolOptions = None,
    features: ImageStore = None,
    text_features: TextStore = None,
    folder_labels: FolderLabels = False,
    on_collapse: OnCollapse = "warn",
    tracker: Tracker = "tensorboard",
    as_json: AsJson = False,
) -> None:
    """Train a recipe with several values of any of its keys, and plot the metrics against them.

    Each run is an ordinary one, in OUT/KEY=VALUE/seed-N. Stopped at any moment, the same command goes on from there;
    more values or seeds extend the sweep. OUT/sweep.png is the curve, OUT/sweep.json every figure. A run that fails is
    reported, the others go on, and the exit code is 1.
    """
    if on_collapse not in ON_COLLAPSE:
        raise ConfigError(f"--on-collapse takes stop or warn, got {on_collapse!r}.")
    if protocol is None and option:
        raise ConfigError(f"--option {option[0]} is for --protocol, and none was given.")
    chosen_seeds = _parse_seeds(seeds)
    chosen = None if protocol is None else find_protocol(protocol, option)
    from polysem.training.sweep import sweep

    try:
        result = sweep(
            recipe,
            settings or (),
            open_data(data, folder_labels),
            out,
            seeds=chosen_seeds,
            protocol=chosen,
            split=split,
            metrics=tuple(filter(None, (metric or "").replace(" ", "").split(","))),
            features=features,
            text_features=text_features,
            on_collapse=on_collapse,  # type: ignore[arg-type]
            tracker=None if tracker == "none" else tracker,
            show=_display(),
        )
    except KeyboardInterrupt:
        typer.echo(f"\nInterrupted. {out} holds what is done: run the same command to go on.", err=True)
        sys.exit(130)
    if as_json:
        print_json({**result.as_dict(), "out": str(out)})
    else:
        _show(result)
    if result.failed:
        sys.exit(1)


def _parse_seeds(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0:
        raise ConfigError(f"--seeds takes whole numbers from 0 on, such as 0,1,2; got {text!r}.")
    return seeds


def _display() -> SweepObserver:
    """Announcements on stderr, with the bar of each training below its own."""
    from rich.console import Console
    from rich.text import Text

    from polysem.training.monitoring.report import format_duration
    from polysem.training.sweep import SweepObserver

    console = Console(stderr=True, highlight=False)

    class SweepDisplay(SweepObserver):
        def __init__(self) -> None:
            self._began, self._trained, self._left = 0.0, list[float](), 0
            self._stage = ""

        def begin(self, number: int, total: int, point: Any, seed: int) -> None:
            self._began, self._left = time.monotonic(), total - number
            self._print(f"Run {number} of {total}: {point.name}, seed {seed}", "bold")

        def training(self) -> Any:
            return TrainingDisplay()

        def measuring(self, stage: str, done: int, total: int) -> None:
            if stage != self._stage and done < total:
                self._stage = stage
                self._print(f"Measuring: {stage} …", "dim")

        def end(self, run: SweepRun, trained: bool) -> None:
            if run.error:
                self._print(f"Failed: {run.error}", "red")
            elif not trained:
                self._print("Finished earlier.", "dim")
            else:
                self._trained.append(time.monotonic() - self._began)
                if self._left:
                    left = self._left * sum(self._trained) / len(self._trained)
                    self._print(f"{self._left} to go, {format_duration(left)} at most if all take as long.", "dim")

        def _print(self, text: str, style: str) -> None:
            console.print(Text(text, style=style), soft_wrap=True)

    return SweepDisplay()


def _show(result: Sweep) -> None:
    from rich.table import Table
    from rich.text import Text

    from polysem.training.monitoring.report import format_duration
    from polysem.training.sweep.plan import format_value
    from polysem.training.sweep.run import PLOT

    rows = result.rows
    table = Table(
        *result.keys, "seeds", *result.metrics, "time", title=f"{result.recipe} on {result.data}", title_justify="left"
    )
    for column in table.columns:
        column.justify = "right"
    best = {metric: _best(metric, [row.means.get(metric) for row in rows]) for metric in result.metrics}
    for row in rows:
        cells = [
            Text(_figure(row, metric), style="bold" if row.means.get(metric) == best[metric] is not None else "")
            for metric in result.metrics
        ]
        seeds = str(len(row.finished)) if len(row.finished) == len(row.runs) else f"{len(row.finished)}/{len(row.runs)}"
        spent = format_duration(sum(run.seconds for run in row.runs))
        table.add_row(*(format_value(row.values[key]) for key in result.keys), seeds, *cells, spent)
    console = new_console()
    console.print(table)
    for stamp in result.protocols:
        console.print(Text(f"[{stamp}]", style="dim"), soft_wrap=True)
    for run in result.failed:
        what = f"{run.folder}, seed {run.seed}: {run.status}. {run.error}"
        console.print(Text(what, style="red"), soft_wrap=True)
    if any(row.means for row in rows):
        console.print(Text(f"{result.out / PLOT} shows the curve."), soft_wrap=True)


def _best(metric: str, means: list[float | None]) -> float | None:
    known = [mean for mean in means if mean is not None]
    if len(known) < 2:
        return None
    return min(known) if metric.rpartition(".")[2] in LOWER_IS_BETTER else max(known)


def _figure(row: Any, metric: str) -> str:
    mean, spread = row.means.get(metric), row.spreads.get(metric)
    if mean is None:
        return "–"
    return f"{mean:.1f}" if spread is None else f"{mean:.1f} ± {spread:.1f}"
