"""`sweep`: one training run after another, each in a folder of its own. What is finished is not repeated."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from polysem import atomic_write, distributed
from polysem.data import open_collection
from polysem.data.collection import Collection
from polysem.errors import ConfigError, InputError, PolysemError
from polysem.evaluation import Protocol
from polysem.training import run_folder, splits
from polysem.training.build import learns_labels
from polysem.training.loop import NullObserver, OnCollapse, TrainingObserver
from polysem.training.sweep.plan import SweepPlan, SweepPoint, canonical_text, plan_sweep
from polysem.training.sweep.result import (
    Sweep,
    SweepRun,
    check_metrics,
    check_validation_metrics,
    default_metrics,
    measure_run,
    save_plot,
)
from polysem.training.train import TrainingResult, train

STATE, PLOT = "sweep.json", "sweep.png"

TrainOne = Callable[..., TrainingResult]
Measure = Callable[[Path, Mapping[str, Any]], tuple[dict[str, float], str]]
"""From a run's folder and run.json to its figures and their stamp."""


class SweepObserver:
    """Callbacks of a sweep, to show its progress. These do nothing: override what is to be shown."""

    def begin(self, number: int, total: int, point: SweepPoint, seed: int) -> None:
        """A run begins, or is found finished."""

    def training(self) -> TrainingObserver:
        """The observer of the training run that begins."""
        return NullObserver()

    def measuring(self, stage: str, done: int, total: int) -> None:
        """Figures are measured under a protocol."""

    def end(self, run: SweepRun, trained: bool) -> None:
        """trained: now, and not earlier."""


def sweep(
    recipe: str | Path,
    settings: Iterable[str],
    data: str | Path | Collection,
    out: str | Path,
    *,
    seeds: Sequence[int] = (),
    protocol: Protocol | None = None,
    split: str | None = None,
    metrics: Sequence[str] = (),
    features: str | Path | None = None,
    text_features: str | Path | None = None,
    on_collapse: OnCollapse = "warn",
    tracker: str | None = "tensorboard",
    show: SweepObserver | None = None,
) -> Sweep:
    """Train the recipe with every combination of the values in `settings` and every seed.

    Runs lie in OUT/<key=value,…>/seed-N. The same call again skips those that are finished and resumes the one
    that was interrupted; more values or seeds extend the sweep, anything else that changed is refused. A run that fails
    is reported in the result, and the others go on.

    Args:
        settings: `path.to.key=a,b,c` to sweep, `path.to.key=value` to change the recipe.
        protocol, split: how to measure; by default the figures are those of the validation that picked each run's
            weights.
        metrics: of table and plot, by path ("i2t.ndcg50").
        features, text_features: stores that all runs share, as for `train`.
        on_collapse, tracker: as for `train`.
        show: its methods are called for every run.
    """
    if distributed.world_size() > 1:
        remedy = "Start it without a launcher; for a run in several processes there is `polysem train`."
        raise ConfigError(f"A sweep trains one run after another in one process. {remedy}")
    folder, observer = Path(out), show or SweepObserver()
    plan = plan_sweep(recipe, settings, seeds)
    recipes = list(plan.recipes.values())
    if protocol is None:
        if split is not None:
            raise ConfigError(f"--split {split} is for --protocol: without one, figures are those of the validation.")
        check_validation_metrics(metrics, recipes)
    run_folder.check_folder(folder, "sweep", (folder / STATE).is_file())
    collection = data if isinstance(data, Collection) else open_collection(data)
    digest = splits.split(collection, recipes[0].data).digest(learns_labels(recipes[0]))
    content = {"name": collection.name, "digest": digest}
    old = _read_other_runs(folder, plan, content)
    stores: dict[str, Any] = {"features": features, "text_features": text_features}
    if split is None:  # test, or whatever was not trained on
        known = collection.splits if collection.has_splits else {}
        split = next((name for name in ("test", "val", *known) if name in known), "val")
    measure = partial(
        measure_run, collection=collection, protocol=protocol, split=split, stores=stores, progress=observer.measuring
    )

    def write(state: Sweep) -> None:
        values = {**state.as_dict(), "settings": plan.base, "content": content}
        text = json.dumps(run_folder.replace_non_finite(values), indent=2, ensure_ascii=False, default=str)
        atomic_write.write_text(folder / STATE, text + "\n")

    with run_folder.lock_folder(folder):
        result = Sweep(plan.recipe, collection.name, plan.keys, tuple(metrics), (), folder)
        if not (folder / STATE).is_file():
            write(result)
        train_one = partial(train, data=collection, on_collapse=on_collapse, tracker=tracker, **stores)
        for run in _run_all(plan, old, folder, train_one, measure, observer):
            result = replace(result, runs=(*result.runs, run))
            if run.figures and not result.metrics:
                result = replace(result, metrics=default_metrics(recipes, None if protocol is None else run.figures))
            if run.figures and protocol is not None:
                check_metrics(result.metrics, list(run.figures), f"of protocol {protocol.name}")
            # The runs of earlier calls stay written down until they have been measured again.
            seen = {(run.folder, run.seed) for run in result.runs}
            rest = tuple(run for run in old if (run.folder, run.seed) not in seen)
            write(replace(result, runs=(*result.runs, *rest)))
        result = replace(result, runs=tuple(_sort(result.runs)))
        write(result)
        save_plot(result, folder / PLOT)
    return result


def _run_all(
    plan: SweepPlan, old: Sequence[SweepRun], out: Path, train_one: TrainOne, measure: Measure, observer: SweepObserver
) -> Iterator[SweepRun]:
    """The runs of earlier calls first, measured like the new ones; then each that is asked for."""
    for run in old:
        folder = out / run.folder / f"seed-{run.seed}"
        try:
            yield _measure(replace(run, figures={}, protocol="", error=""), folder, measure)
        except PolysemError as error:
            yield replace(run, status="failed", figures={}, protocol="", error=str(error))
    total = len(plan.points) * len(plan.seeds)
    # Seed by seed: a sweep that is cut short has each value once rather than the first value three times.
    order = [(point, seed) for seed in plan.seeds for point in plan.points]
    for number, (point, seed) in enumerate(order, start=1):
        folder = out / point.folder / f"seed-{seed}"
        observer.begin(number, total, point, seed)
        run, trained = SweepRun(dict(point.values), seed, point.folder, "failed"), False
        try:
            result = train_one(plan.recipes[point.folder, seed], out=folder, show=observer.training())
            trained = result.resumed_from < result.steps
            run = _measure(replace(run, status=result.status, seconds=result.seconds), folder, measure)
        except PolysemError as error:
            run = replace(run, error=str(error))
        except Exception as error:  # of memory, or a defect: the other values may do
            folder.mkdir(parents=True, exist_ok=True)
            (folder.parent / f"{folder.name}.error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            run = replace(run, error=f"{type(error).__name__}: {error}. See {folder}.error.txt.")
        observer.end(run, trained)
        yield run


def _measure(run: SweepRun, folder: Path, measure: Measure) -> SweepRun:
    about = run_folder.read_run(folder)
    if about is None:
        return replace(run, status="missing", error=f"{folder} is gone. Ask for its value and seed to train it again.")
    run = replace(run, status=about["status"], seconds=float(about.get("seconds", 0.0)))
    if run.status != "finished":
        return replace(run, error=run.error or str(about.get("error") or about["status"]))
    figures, stamp = measure(folder, about)
    return replace(run, figures=figures, protocol=stamp, error="")


def _sort(runs: Sequence[SweepRun]) -> list[SweepRun]:
    """Numbers by size, other values as they came, then by seed: what was added later stands in its place."""
    order: dict[str, int] = {}
    for run in runs:
        for value in run.values.values():
            order.setdefault(canonical_text(value), len(order))

    def key(value: Any) -> tuple[int, float]:
        return (0, float(value)) if run_folder.is_number(value) else (1, float(order[canonical_text(value)]))

    return sorted(runs, key=lambda run: [*(key(value) for value in run.values.values()), (0, float(run.seed))])


def _read_other_runs(out: Path, plan: SweepPlan, content: Mapping[str, str]) -> list[SweepRun]:
    """The runs of sweep.json that this call does not ask for: they stand in the same table. Raises if the folder's
    sweep is another one; more values and more seeds extend it."""
    path = out / STATE
    if not path.is_file():
        return []
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}). Sweep into another folder.") from None
    if not isinstance(earlier, dict) or not {"keys", "settings", "content", "runs"} <= earlier.keys():
        raise InputError(f"{path} was not written by a sweep. Sweep into another folder.")
    different = []
    if sorted(earlier["keys"]) != sorted(plan.keys):
        different.append(f"keys swept: {', '.join(earlier['keys'])} then, {', '.join(plan.keys)} now")
    else:
        different += run_folder.list_differences(earlier["settings"], json.loads(json.dumps(plan.base, default=str)))
    sweeps_data = any(key.partition(".")[0] == "data" for key in plan.keys)
    if earlier["content"] != content and not sweeps_data:  # else each run sees to it
        different.append("the data: other items, captions, labels or splits")
    if different:
        raise InputError(
            f"{out} holds another sweep: {'; '.join(different[:5])}. Run the same command to resume it or to add "
            "values and seeds, or give another --out."
        )
    runs = [SweepRun(**entry) for entry in earlier["runs"]]
    asked = {(point.folder, seed) for point in plan.points for seed in plan.seeds}
    return [run for run in runs if (run.folder, run.seed) not in asked]
