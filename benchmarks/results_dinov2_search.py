"""The search for learning rate, dropout and epochs: on train alone, a tenth of it held out, the same for every row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from results_dinov2_rows import Row, Trial
from results_dinov2_run import Bench, Cell, run

SEED = 0
Done = Callable[[Row, Trial, Cell], None]


def search(bench: Bench, row: Row, done: Done) -> None:
    """Every trial of a row that is not there yet."""
    while trials := next_trials(bench, row):
        for trial in trials:
            done(row, trial, run(bench, row, trial, SEED, searching=True))


def next_trials(bench: Bench, row: Row) -> list[Trial]:
    """What is to be tried next: what is missing of the first stage that is not whole."""
    for trials in _stages(bench, row):
        missing = [trial for trial in trials if bench.cell(row, trial, SEED, searching=True) is None]
        if missing:
            return missing
    return []


def choose(bench: Bench, row: Row) -> Trial | None:
    """How a row is trained: the best of all stages of its search, None before it is finished."""
    searched = bench.plan.rows[row.search]
    if next_trials(bench, searched):
        return None
    return _best(bench, searched, [trial for trials in _stages(bench, searched) for trial in trials])


def _stages(bench: Bench, row: Row) -> Iterator[list[Trial]]:
    """The stages that can be told by now."""
    grid, best = bench.plan.grid, None
    for number in range(len(grid.epochs)):
        trials = grid.stage(number, best)
        yield trials
        best = _best(bench, row, trials)
        if best is None:
            return


def _best(bench: Bench, row: Row, trials: list[Trial]) -> Trial | None:
    """By RSUM of the held-out tenth; of equals the first. None where all diverged or none is there."""
    cells = {trial: bench.cell(row, trial, SEED, searching=True) or {} for trial in trials}
    found = {trial: cell["last_rsum"] for trial, cell in cells.items() if "last_rsum" in cell}
    return max(found, key=lambda trial: found[trial]) if found else None


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
