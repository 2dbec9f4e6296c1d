"""`sweep`: run after run, each an ordinary training run in a folder of its own. What is there is not repeated."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polysem import distributed
from polysem.data import open_collection
from polysem.data.collection import Collection
from polysem.errors import ConfigError, PolysemError
from polysem.evaluation import Protocol
from polysem.recipes import Recipe, parse
from polysem.training import folder
from polysem.training.data import digest, split
from polysem.training.labels import learns_labels
from polysem.training.loop import OnCollapse
from polysem.training.sweep import plot, state
from polysem.training.sweep.metrics import Measure
from polysem.training.sweep.parse import canonical
from polysem.training.sweep.plan import Plan, Point, plan
from polysem.training.sweep.result import Run, Sweep, check_metrics, check_validation_metrics, default_metrics
from polysem.training.train import Silent, train


class Watcher:
    """Who looks on. This one sees nothing."""

    def begin(self, number: int, total: int, point: Point, seed: int) -> None:
        """A run begins, or is found finished."""

    def training(self) -> Any:
        """Who looks on while it trains, as `train` takes it."""
        return Silent()

    def measuring(self, stage: str, done: int, total: int) -> None:
        """Figures are measured under a protocol."""

    def end(self, run: Run, trained: bool) -> None:
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
    show: Watcher | None = None,
) -> Sweep:
    """Train the recipe with every combination of the values in `settings` (`path.to.key=a,b,c`) and every seed.

    Runs lie in OUT/<key=value,…>/seed-N. The same call again skips those that are finished and goes on with the one
    that was interrupted; more values or seeds extend the sweep, anything else that changed is refused. A run that fails
    is reported in the result, and the others go on. protocol, split: how to measure; by default the figures are those
    of the validation that picked each run's weights. metrics: of table and picture, by path ("i2t.ndcg50").
    features, text_features: stores that all runs share, as for `train`.
    """
    if distributed.world_size() > 1:
        raise ConfigError(
            "A sweep trains one run after another in one process. Start it without a launcher; for a run in several "
            "processes there is `polysem train`."
        )
    place, watcher = Path(out), show or Watcher()
    wanted = plan(recipe, settings, seeds)
    recipes = list(wanted.recipes.values())
    if protocol is None:
        if split is not None:
            raise ConfigError(f"--split {split} is for --protocol: without one, figures are those of the validation.")
        check_validation_metrics(metrics, recipes)
    earlier = state.read(place)
    collection = data if isinstance(data, Collection) else open_collection(data)
    content = _content(collection, wanted.first)
    if earlier is not None:
        state.check(place, earlier, wanted, content)
    stores = tuple(None if given is None else Path(given) for given in (features, text_features))
    measure = Measure(collection, protocol, split, (stores[0], stores[1]))
    begun = {"settings": wanted.base, "content": content}
    with folder.held(place):
        found = Sweep(wanted.recipe, collection.name, wanted.keys, tuple(metrics), (), place)
        if earlier is None:
            state.write(place, {**found.as_dict(), **begun})
        old = [] if earlier is None else _earlier(earlier, wanted)
        for run in _runs(wanted, old, place, measure, watcher, on_collapse, tracker, stores):
            found = replace(found, runs=(*found.runs, run))
            if run.figures and not found.metrics:
                found = replace(found, metrics=default_metrics(recipes, None if protocol is None else run.figures))
            if run.figures and protocol is not None:
                check_metrics(found.metrics, list(run.figures), f"of protocol {protocol.name}")
            # What earlier calls found stays written down until it has been looked at again.
            seen = {(run.folder, run.seed) for run in found.runs}
            rest = tuple(run for run in old if (run.folder, run.seed) not in seen)
            state.write(place, {**replace(found, runs=(*found.runs, *rest)).as_dict(), **begun})
        found = replace(found, runs=tuple(_sorted(found.runs)))
        state.write(place, {**found.as_dict(), **begun})
        plot.save(found, place / state.PICTURE)
    return found


def _content(collection: Collection, recipe: Recipe) -> dict[str, str]:
    return {"name": collection.name, "digest": digest(split(collection, recipe.data), learns_labels(recipe))}


def _earlier(found: dict[str, Any], wanted: Plan) -> list[Run]:
    """Runs of earlier calls that this one does not ask for: they stand in the same table."""
    asked = {(point.folder, seed) for point in wanted.points for seed in wanted.seeds}
    runs = [Run(**entry) for entry in found["runs"]]
    return [run for run in runs if (run.folder, run.seed) not in asked]


def _runs(
    wanted: Plan,
    old: Sequence[Run],
    out: Path,
    measure: Measure,
    watcher: Watcher,
    on_collapse: OnCollapse,
    tracker: str | None,
    stores: tuple[Path | None, ...],
) -> Iterator[Run]:
    """Those of earlier calls first, measured like the new ones; then each that is asked for."""
    for run in old:
        there = out / run.folder / f"seed-{run.seed}"
        try:
            yield _measured(replace(run, figures={}, protocol="", error=""), there, measure, watcher)
        except PolysemError as error:
            yield replace(run, status="failed", figures={}, protocol="", error=str(error))
    total = len(wanted.points) * len(wanted.seeds)
    # Seed by seed: a sweep that is cut short has each value once rather than the first value three times.
    order = [(point, seed) for seed in wanted.seeds for point in wanted.points]
    for number, (point, seed) in enumerate(order, start=1):
        there = out / point.folder / f"seed-{seed}"
        watcher.begin(number, total, point, seed)
        run, trained = Run(dict(point.values), seed, point.folder, "failed"), False
        try:
            result = train(
                wanted.recipes[point.folder, seed],
                measure.collection,
                there,
                features=stores[0],
                text_features=stores[1],
                on_collapse=on_collapse,
                tracker=tracker,
                show=watcher.training(),
            )
            trained = result.resumed_from < result.steps
            run = _measured(replace(run, status=result.status, seconds=result.seconds), there, measure, watcher)
        except PolysemError as error:
            run = replace(run, error=str(error))
        except Exception as error:  # of memory, or a defect: the other values may do
            there.mkdir(parents=True, exist_ok=True)
            (there.parent / f"{there.name}.error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            run = replace(run, error=f"{type(error).__name__}: {error}. See {there}.error.txt.")
        watcher.end(run, trained)
        yield run


def _measured(run: Run, there: Path, measure: Measure, watcher: Watcher) -> Run:
    about = folder.read(there)
    if about is None:
        return replace(run, status="missing", error=f"{there} is gone. Ask for its value and seed to train it again.")
    run = replace(run, status=about["status"], seconds=float(about.get("seconds", 0.0)))
    if run.status != "finished":
        return replace(run, error=run.error or f"{about.get('error') or about['status']}")
    figures, stamp = measure.figures(there, about, parse(about["recipe"]), watcher.measuring)
    return replace(run, figures=figures, protocol=stamp, error="")


def _sorted(runs: Sequence[Run]) -> list[Run]:
    """Numbers by size, other values as they came, then by seed: what was added later stands in its place."""
    met: dict[str, int] = {}
    for run in runs:
        for value in run.values.values():
            met.setdefault(canonical(value), len(met))

    def place(value: Any) -> tuple[int, float]:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return (0, float(value)) if is_number else (1, float(met[canonical(value)]))

    return sorted(runs, key=lambda run: [*(place(value) for value in run.values.values()), (0, float(run.seed))])
