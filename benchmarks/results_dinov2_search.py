"""The search for learning rate, dropout and epochs: on train alone, a tenth of it held out, the same for every row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from results_dinov2_rows import Row, Trial
from results_dinov2_run import Bench, Cell, run

SEED = 0
Done = Callable[[Row, Trial, Cell], None]


def search(bench: Bench, row: Row, done: Done) -> None:
    """Every trial of a row that is not there yet."""
    for trial in next_trials(bench, row):
        done(row, trial, run(bench, row, trial, SEED, searching=True))
    if missing := next_trials(bench, row):  # those at more epochs, once the best pair is known
        for trial in missing:
            done(row, trial, run(bench, row, trial, SEED, searching=True))


def next_trials(bench: Bench, row: Row) -> list[Trial]:
    """What can be tried now: all rates and dropouts at the fewest epochs; when these are there, the best at more."""
    first = [trial for trial in bench.plan.grid.first() if bench.cell(row, trial, SEED, searching=True) is None]
    if first:
        return first
    best = _best(bench, row, bench.plan.grid.first())
    if best is None:
        return []
    longer = bench.plan.grid.longer(best)
    return [trial for trial in longer if bench.cell(row, trial, SEED, searching=True) is None]


def choose(bench: Bench, row: Row) -> Trial | None:
    """How a row is trained: the best of its search, None before it is finished.

    Of several epochs the fewest that no larger number beats.
    """
    searched = bench.plan.rows[row.search]
    if next_trials(bench, searched):
        return None
    best = _best(bench, searched, bench.plan.grid.first())
    return None if best is None else _best(bench, searched, [best, *bench.plan.grid.longer(best)])


def _best(bench: Bench, row: Row, trials: list[Trial]) -> Trial | None:
    """By RSUM of the held-out tenth; of equals the first. None where all diverged."""
    found = {trial: cell["last_rsum"] for trial in trials if "last_rsum" in (cell := _cell(bench, row, trial))}
    return max(found, key=lambda trial: found[trial]) if found else None


def _cell(bench: Bench, row: Row, trial: Trial) -> Cell:
    return bench.cell(row, trial, SEED, searching=True) or {}


def summarise(bench: Bench) -> dict[str, Any]:
    """Every trial that was ever made, by row, and what was chosen: JSON-able."""
    made: dict[str, list[Cell]] = {}
    for file in sorted((bench.out / "search").glob("*.json")):
        cell = json.loads(file.read_text(encoding="utf-8"))
        made.setdefault(cell["row"], []).append(cell)
    found = {}
    for row in bench.plan.searched:
        chosen = choose(bench, row)
        cells = sorted(made.get(row.name, ()), key=lambda cell: json.dumps(cell["trial"], sort_keys=True))
        found[row.name] = {
            "label": row.label,
            "chosen": None if chosen is None else asdict(chosen),
            "trials": [
                {
                    **cell["trial"],
                    "rsum": cell.get("last_rsum"),
                    "steps": cell.get("steps"),
                    "processor_seconds": cell["processor_seconds"],
                    **({"stopped": cell["stopped"]} if "stopped" in cell else {}),
                }
                for cell in cells
            ],
        }
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]
