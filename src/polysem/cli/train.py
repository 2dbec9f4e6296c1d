"""`polysem train`, `finetune`, `grow` and `sweep`: a recipe and a collection to a model folder, or many and a curve."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from polysem.cli.options import AsJson, FolderLabels, ProtocolOptions, find_protocol, open_data, option
from polysem.cli.output import ProgressBar, exit_on_interrupt, new_console, new_table, print_facts, print_json
from polysem.errors import ConfigError

if TYPE_CHECKING:
    from polysem.data.collection import Collection
    from polysem.recipes import Recipe
    from polysem.training import TrainingResult
    from polysem.training.monitoring.display import TerminalDisplay
    from polysem.training.sweep import Sweep, SweepRun

LOG_SECONDS = 30.0
"""Between two lines where there is no terminal to draw a bar on, such as a log file."""
LOWER_IS_BETTER = ("median_rank", "mean_rank")


def _check_on_collapse(value: str) -> str:
    if value not in ("stop", "warn"):
        raise ConfigError(f"--on-collapse takes stop or warn, got {value!r}.")
    return value


RecipeName = Annotated[str, Argument(help="Name of a recipe (`polysem recipes`), or the path of a YAML.")]
TrainingData = Annotated[Path, Option(help="The collection: a folder, or the file that describes it.")]
RunFolder = Annotated[Path, Option(help="Folder to write. What an earlier run began there is continued.")]
ImageStore = Annotated[Path | None, option("Features of the images, made if absent.", default="in the cache")]
TextStore = Annotated[Path | None, option("Features of the captions, made if absent.", default="in the cache")]
OnCollapse = Annotated[
    str, Option(help="What to do with a run that collapses or diverges: stop or warn.", callback=_check_on_collapse)
]
Tracker = Annotated[str, Option(help="A tracker of accelerate by name, or none.")]


def train_command(
    recipe: RecipeName,
    data: TrainingData,
    out: RunFolder,
    settings: Annotated[
        list[str] | None, option("Change the recipe; repeatable.", "--set", metavar="KEY=VALUE")
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
    from polysem import recipes

    options: dict[str, Any] = {"features": features, "text_features": text_features, "on_collapse": on_collapse}
    _run_training(recipes.load(recipe, settings or ()), open_data(data, folder_labels), out, tracker, as_json, options)


def finetune_command(
    model: Annotated[str, Argument(help="Folder or name of the model to start from.")],
    data: TrainingData,
    out: RunFolder,
    settings: Annotated[
        list[str] | None, option("Change the recipe of fine-tuning; repeatable.", "--set", metavar="KEY=VALUE")
    ] = None,
    features: ImageStore = None,
    text_features: TextStore = None,
    folder_labels: FolderLabels = False,
    on_collapse: OnCollapse = "warn",
    tracker: Tracker = "tensorboard",
    as_json: AsJson = False,
) -> None:
    """Train a model further on your own pictures and captions. The result is never worse on validation than the start.

    The model's own parts go on from its weights; a frozen encoder stays frozen, `--set image.encoder.trainable=2`
    trains its last two layers at a tenth of the rate. Of a dual encoder (CLIP, SigLIP) the last layer of both halves
    and their projections train. The start is validated first and competes for the best.
    """
    from polysem.training.start import finetune_recipe, load_start

    options: dict[str, Any] = {"features": features, "text_features": text_features, "on_collapse": on_collapse}
    recipe = finetune_recipe(load_start(model), model, settings or ())
    _run_training(recipe, open_data(data, folder_labels), out, tracker, as_json, options)


def grow_command(
    model: Annotated[str, Argument(help="Folder or name of a model that makes one vector of an item.")],
    data: TrainingData,
    out: RunFolder,
    k: Annotated[int, Option("--k", min=2, help="Vectors of an image.")] = 4,
    train_base: Annotated[
        bool, Option("--train-base", help="The model learns too, at a tenth of the rate; else it stays as it is.")
    ] = False,
    settings: Annotated[
        list[str] | None, option("Change the recipe of growing; repeatable.", "--set", metavar="KEY=VALUE")
    ] = None,
    features: ImageStore = None,
    text_features: TextStore = None,
    folder_labels: FolderLabels = False,
    on_collapse: OnCollapse = "warn",
    tracker: Tracker = "tensorboard",
    as_json: AsJson = False,
) -> None:
    """Give a single-vector model sets: K vectors of an image that begin exactly at its own and are trained beside it.

    A text keeps its one vector, and chooses among the image's. The ranking at the first step is the model's own, so
    that the result is never worse on validation. CLIP, SigLIP and models of your own.
    """
    from polysem.training.start import grow_recipe, load_start

    options: dict[str, Any] = {"features": features, "text_features": text_features, "on_collapse": on_collapse}
    recipe = grow_recipe(load_start(model), model, k, train_base, settings or ())
    _run_training(recipe, open_data(data, folder_labels), out, tracker, as_json, options)


def _run_training(
    recipe: Recipe, collection: Collection, out: Path, tracker: str, as_json: bool, options: dict[str, Any]
) -> None:
    from polysem.training import train

    options["tracker"] = None if tracker == "none" else tracker
    with exit_on_interrupt(f"Interrupted. {out} holds a checkpoint: run the same command to go on."):
        result = train(recipe, collection, out, **options, show=TrainingDisplay())
    if os.environ.get("RANK", "0") != "0":  # the processes have parted by now, only their names are left
        return
    if as_json:
        print_json({**asdict(result), "run": str(result.run)})
    else:
        _show_run(result)


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


def _show_run(result: TrainingResult) -> None:
    rows = [
        ("Folder", str(result.run)),
        ("Steps", f"{result.steps:,}" + (f" (from {result.resumed_from:,} on)" if result.resumed_from else "")),
        ("Time", f"{result.seconds / 60:.1f} min"),
    ]
    if result.best:
        best = result.best
        where = f"at step {best['step']:,}"
        if result.start_rsum is not None:
            kept = "the start, which training did not better"
            where = kept if best["step"] == 0 else f"{where}; before the first step {result.start_rsum:.1f}"
        rows.append(("Validation RSUM", f"{best['rsum']:.1f} {where}"))
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


def sweep_command(
    recipe: RecipeName,
    data: TrainingData,
    out: RunFolder,
    settings: Annotated[
        list[str] | None, option("Values of a key; repeatable: several make a grid.", "--set", metavar="KEY=A,B,C")
    ] = None,
    seeds: Annotated[str | None, option("Seeds to train each with.", metavar="0,1,2", default="the recipe's")] = None,
    metric: Annotated[
        str | None, option("What to show: i2t.ndcg50,micro_f1.image.", default="what picks the checkpoint")
    ] = None,
    protocol: Annotated[str | None, option("Measure as `polysem eval` does.", default="by validation")] = None,
    split: Annotated[str | None, option("Which split to measure on, with --protocol.", default="test")] = None,
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
    if protocol is None and option:
        raise ConfigError(f"--option {option[0]} is for --protocol, and none was given.")
    options: dict[str, Any] = {"features": features, "text_features": text_features, "on_collapse": on_collapse}
    options |= {"seeds": _parse_seeds(seeds), "split": split, "tracker": None if tracker == "none" else tracker}
    options["protocol"] = None if protocol is None else find_protocol(protocol, option)
    options["metrics"] = tuple(filter(None, (metric or "").replace(" ", "").split(",")))
    from polysem.training.sweep import sweep

    display: Any = _SweepDisplay()
    with exit_on_interrupt(f"Interrupted. {out} holds what is done: run the same command to go on."):
        result = sweep(recipe, settings or (), open_data(data, folder_labels), out, **options, show=display)
    if as_json:
        print_json({**result.as_dict(), "out": str(out)})
    else:
        _show_sweep(result)
    if result.failed:
        sys.exit(1)


def _parse_seeds(text: str | None) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        seeds = (-1,)
    if seeds and min(seeds) < 0:
        raise ConfigError(f"--seeds takes whole numbers from 0 on, such as 0,1,2; got {text!r}.")
    return seeds


class _SweepDisplay:
    """A `SweepObserver`: announcements on stderr, with the bar of each training below its own."""

    def __init__(self) -> None:
        self._console = new_console(stderr=True)
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
        from polysem.training.monitoring.report import format_duration

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
        self._console.print(text, style=style, soft_wrap=True)


def _show_sweep(result: Sweep) -> None:
    from rich.text import Text

    from polysem.training.monitoring.report import format_duration
    from polysem.training.sweep.plan import format_value
    from polysem.training.sweep.run import PLOT

    rows = result.rows
    names = [*result.keys, "seeds", *result.metrics, "time"]
    table = new_table(f"{result.recipe} on {result.data}", *names, align="r" * len(names))
    best = {}
    for metric in result.metrics:
        means = [row.means[metric] for row in rows if row.means.get(metric) is not None]
        better = min if metric.rpartition(".")[2] in LOWER_IS_BETTER else max
        best[metric] = better(means) if len(means) > 1 else None
    for row in rows:
        cells = []
        for metric in result.metrics:
            mean, spread = row.means.get(metric), row.spreads.get(metric)
            figure = "–" if mean is None else f"{mean:.1f}" if spread is None else f"{mean:.1f} ± {spread:.1f}"
            cells.append(Text(figure, style="bold" if mean == best[metric] is not None else ""))
        seeds = str(len(row.finished)) if len(row.finished) == len(row.runs) else f"{len(row.finished)}/{len(row.runs)}"
        spent = format_duration(sum(run.seconds for run in row.runs))
        table.add_row(*(format_value(row.values[key]) for key in result.keys), seeds, *cells, spent)
    console = new_console()
    console.print(table)
    for stamp in result.protocols:
        console.print(f"[{stamp}]", style="dim", soft_wrap=True)
    for run in result.failed:
        console.print(f"{run.folder}, seed {run.seed}: {run.status}. {run.error}", style="red", soft_wrap=True)
    if any(row.means for row in rows):
        console.print(f"{result.out / PLOT} shows the curve.", soft_wrap=True)
