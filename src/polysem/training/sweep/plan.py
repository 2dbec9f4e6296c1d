"""What a sweep trains: every combination of values, with every seed, each a checked recipe."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from polysem.errors import ConfigError
from polysem.recipes import Recipe, load
from polysem.recipes.loading import read_content, read_value

SEED = "training.seed"

_OPEN, _CLOSE, _QUOTES = "[{", "]}", "\"'"
_LONGEST = 100


@dataclass(frozen=True)
class SweepPoint:
    """One combination of values."""

    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """`key=value,…`, for people."""
        return format_values(self.values)

    @property
    def folder(self) -> str:
        """The name, as a folder may be called, whatever the order of the keys; with a digest where characters had to
        go, so that two never share one."""
        full = format_values(dict(sorted(self.values.items())))
        safe = re.sub(r"[^\w.,=+-]", "_", full)[:_LONGEST]
        return safe if safe == full else f"{safe}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class SweepPlan:
    """All runs of a sweep.

    Args:
        axes: the keys with several values, each with these.
        seeds: each point is trained with each of them.
        recipes: by point and seed.
        base: what all of them have in common, as plain data.
    """

    recipe: str
    axes: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    points: tuple[SweepPoint, ...]
    recipes: Mapping[tuple[str, int], Recipe]
    base: Mapping[str, Any]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys with several values."""
        return tuple(self.axes)


def plan_sweep(recipe: str | Path, settings: Iterable[str], seeds: Sequence[int] = ()) -> SweepPlan:
    """Load and check every combination before anything is trained.

    Args:
        recipe: its name or file.
        settings: `path.to.key=value` to change the recipe, `path.to.key=a,b,c` to sweep; several of these make a grid.
        seeds: by default the recipe's own.

    Example:
        >>> from polysem.training.sweep import plan_sweep
        >>> plan = plan_sweep("vse-infty", ["optimiser.lr=1e-4,1e-3"], seeds=(0, 1))
        >>> [point.name for point in plan.points], len(plan.recipes)
        (['optimiser.lr=0.0001', 'optimiser.lr=0.001'], 4)
    """
    given: dict[str, tuple[Any, ...]] = {}
    for setting in settings:
        key, values = parse_axis(setting)
        if key in given:
            raise ConfigError(f"--set {key} was given twice. Give all its values at once: {key}=a,b,c.")
        given[key] = values
    axes = {key: values for key, values in given.items() if len(values) > 1}
    fixed = [_override(key, values[0]) for key, values in given.items() if len(values) == 1]
    if not axes:
        example = "--set objective.lambda=0,0.01,0.1. A single training is `polysem train`."
        raise ConfigError(f"Nothing to sweep: no --set has several values. Example: {example}")
    if SEED in axes:
        raise ConfigError(f"{SEED} is swept by --seeds, which gives the mean and its spread: --seeds 0,1,2.")
    if seeds and SEED in given:
        raise ConfigError(f"Both --seeds and --set {SEED} give seeds. Leave one of them out.")
    if len(set(seeds)) < len(seeds):
        listed = ",".join(map(str, seeds))
        raise ConfigError(f"--seeds {listed}: a seed is given twice. The same seed gives the same run.")
    points = tuple(SweepPoint(dict(zip(axes, values, strict=True))) for values in product(*axes.values()))
    recipes: dict[tuple[str, int], Recipe] = {}
    chosen = tuple(seeds)
    for point in points:
        overrides = [*fixed, *(_override(key, value) for key, value in point.values.items())]
        chosen = chosen or (load(recipe, overrides).training.seed,)
        for seed in chosen:
            recipes[point.folder, seed] = load(recipe, [*overrides, f"{SEED}={seed}"])
    base = read_content(recipe, fixed)
    for key in (*axes, SEED):
        # What is swept is not what all have in common.
        *above, last = key.split(".")
        parent: Any = base
        for step in above:
            parent = parent.get(step) if isinstance(parent, dict) else None
        if isinstance(parent, dict):
            parent.pop(last, None)
    return SweepPlan(str(recipe), axes, chosen, points, recipes, base)


def parse_axis(setting: str) -> tuple[str, tuple[Any, ...]]:
    """`path.to.key=a,b,c`. Commas part the values; those within brackets or quotes belong to one. Values are YAML."""
    key, equals, text = setting.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(
            f"--set takes path.to.key=value, or several values with commas; got {setting!r}. "
            "Example: --set optimiser.lr=1e-4,1e-3"
        )
    pieces = [piece.strip() for piece in _split_values(text, setting)]
    if not all(pieces):
        missing = "there is no value" if len(pieces) == 1 else "there is a comma with no value beside it"
        raise ConfigError(f"--set {setting}: {missing}. Write null for nothing, '' for an empty text.")
    values = tuple(read_value(piece, setting) for piece in pieces)
    known: dict[str, str] = {}
    for piece, value in zip(pieces, values, strict=True):
        same = known.get(canonical_text(value))
        if same is not None:
            twice = f"{piece} is given twice" if same == piece else f"{same} and {piece} are the same value"
            raise ConfigError(f"--set {setting}: {twice}. Give each value once; repetitions are --seeds.")
        known[canonical_text(value)] = piece
    return key, values


def _split_values(text: str, setting: str) -> Iterator[str]:
    """The text between commas that are outside of brackets and quotes."""
    piece, depth, quote = "", 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES and (depth or not piece.strip()):  # the apostrophe of "don't" opens nothing
            quote = sign
        elif sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif sign == "," and depth == 0:
            yield piece
            piece = ""
            continue
        piece += sign
    if depth or quote:
        raise ConfigError(f"--set {setting}: a bracket or quote is opened and not closed, or the other way round.")
    yield piece


def canonical_text(value: Any) -> str:
    """The same text for the same value, however it was written: 1, 1.0 and 1e0."""
    return json.dumps(_whole_as_int(value), sort_keys=True, default=str, ensure_ascii=False)


def format_value(value: Any) -> str:
    """For people."""
    return value if isinstance(value, str) else canonical_text(value)


def format_values(values: Mapping[str, Any]) -> str:
    """`key=value,…`, for people."""
    return ",".join(f"{key}={format_value(value)}" for key, value in values.items())


def _override(key: str, value: Any) -> str:
    """As `recipes.load` takes it: JSON is YAML too."""
    return f"{key}={json.dumps(value, default=str, ensure_ascii=False)}"


def _whole_as_int(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole_as_int(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _whole_as_int(entry) for key, entry in value.items()}
    return value
