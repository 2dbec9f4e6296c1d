"""What a sweep is to train: every combination of values, with every seed, each a checked recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from polysem.errors import ConfigError
from polysem.recipes import Recipe, load
from polysem.recipes.loading import read_content
from polysem.training.sweep.parse import Axis, axis, folder_name, name, override

SEED = "training.seed"


@dataclass(frozen=True)
class Point:
    """One combination of values."""

    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return name(self.values)

    @property
    def folder(self) -> str:
        return folder_name(self.values)


@dataclass(frozen=True)
class Plan:
    """axes: the keys with several values. seeds: each point is trained with each of them.
    recipes: by point and seed. base: what all of them have in common, as plain data."""

    recipe: str
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    points: tuple[Point, ...]
    recipes: Mapping[tuple[str, int], Recipe]
    base: Mapping[str, Any]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(each.key for each in self.axes)

    @property
    def first(self) -> Recipe:
        return next(iter(self.recipes.values()))


def plan(recipe: str | Path, settings: Iterable[str], seeds: Sequence[int] = ()) -> Plan:
    """settings: `path.to.key=value` to change the recipe, `path.to.key=a,b,c` to sweep; several of these make a grid.

    Every combination is loaded and checked here, before anything is trained. seeds: by default the recipe's own.
    """
    given = [axis(setting) for setting in settings]
    for place, each in enumerate(given):
        if each.key in (before.key for before in given[:place]):
            raise ConfigError(f"--set {each.key} was given twice. Give all its values at once: {each.key}=a,b,c.")
    axes = tuple(each for each in given if len(each.values) > 1)
    fixed = [override(each.key, each.values[0]) for each in given if len(each.values) == 1]
    if not axes:
        raise ConfigError(
            "Nothing to sweep: no --set has several values. Example: --set objective.lambda=0,0.01,0.1. "
            "A single training is `polysem train`."
        )
    if any(each.key == SEED for each in axes):
        raise ConfigError(f"{SEED} is swept by --seeds, which gives the mean and its spread: --seeds 0,1,2.")
    if seeds and any(each.key == SEED for each in given):
        raise ConfigError(f"Both --seeds and --set {SEED} say how to begin. Leave one of them out.")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"--seeds {','.join(map(str, seeds))}: a seed stands there twice. The same seed, the same run."
        )
    points = tuple(
        Point(dict(zip((each.key for each in axes), values, strict=True)))
        for values in product(*(each.values for each in axes))
    )
    recipes: dict[tuple[str, int], Recipe] = {}
    chosen = tuple(seeds)
    for point in points:
        own = [*fixed, *(override(key, value) for key, value in point.values.items())]
        chosen = chosen or (load(recipe, own).training.seed,)
        for seed in chosen:
            recipes[point.folder, seed] = load(recipe, [*own, f"{SEED}={seed}"])
    base = read_content(recipe, fixed)
    for key in (*(each.key for each in axes), SEED):
        _forget(base, key.split("."))
    return Plan(str(recipe), axes, chosen, points, recipes, base)


def _forget(content: dict[str, Any], path: Sequence[str]) -> None:
    """Take a key out, where it is: what is swept is not what all have in common."""
    place: Any = content
    for step in path[:-1]:
        place = place.get(step) if isinstance(place, dict) else None
    if isinstance(place, dict):
        place.pop(path[-1], None)
