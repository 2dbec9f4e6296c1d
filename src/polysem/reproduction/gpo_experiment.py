"""All trainings of the synthetic experiment, side by side, their table beside the paper's, and a page of both."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from markupsafe import Markup

from polysem.errors import ConfigError, unknown
from polysem.progress import Progress, ignore
from polysem.reproduction.gpo_synthetic import (
    DESIGNS,
    PATTERNS,
    SHOWN,
    SIZES,
    Agreement,
    GPORun,
    GPOSettings,
    Sizes,
    coefficients,
    compare_with_paper,
    paper_rmse,
    train_and_measure,
)
from polysem.training import charts


@dataclass(frozen=True)
class GPOCell:
    """A cell of the table. ours: the mean over seeds; spread: their standard deviation, 0 for a single one."""

    design: str
    pattern: str
    sizes: Sizes
    paper: float
    ours: float
    spread: float
    verdict: Agreement


@dataclass(frozen=True)
class GPOExperiment:
    """seconds: on the clock. cpu_seconds: summed over all trainings."""

    settings: GPOSettings
    seeds: int
    seconds: float
    cpu_seconds: float
    cells: tuple[GPOCell, ...]
    runs: tuple[GPORun, ...]

    def met(self, design: str) -> tuple[int, int]:
        """How many cells of a design agree with the paper's, of how many."""
        verdicts = [cell.verdict for cell in self.cells if cell.design == design]
        return verdicts.count("met"), len(verdicts)


def reproduce(
    designs: Sequence[str] = tuple(DESIGNS),
    patterns: Sequence[str] = tuple(PATTERNS),
    seeds: int = 1,
    settings: GPOSettings | None = None,
    workers: int | None = None,
    progress: Progress = ignore,
) -> GPOExperiment:
    """Train every design on every pattern with `seeds` seeds.

    Args:
        settings: of every training.
        workers: processes, by default one for each core; 1 stays in this process. A script that calls this needs the
            usual `if __name__ == "__main__":`.
    """
    for kind, given, known in (("design", designs, DESIGNS), ("pattern", patterns, PATTERNS)):
        for name in given:
            if name not in known:
                raise unknown(kind, name, known)
    if seeds < 1:
        raise ConfigError(f"seeds must be 1 or more, got {seeds}.")
    settings = settings or GPOSettings()
    began = time.perf_counter()
    # Slow designs first, so that no core waits at the end for the last of them.
    slow_first = sorted(dict.fromkeys(designs), key=lambda design: "bigru" not in design)
    jobs = [(d, p, s, settings) for d in slow_first for p in dict.fromkeys(patterns) for s in range(seeds)]
    runs = _run_all(jobs, min(workers or os.cpu_count() or 1, len(jobs)), progress)
    runs.sort(key=lambda run: (list(DESIGNS).index(run.design), list(PATTERNS).index(run.pattern), run.seed))
    cells = []
    for design, pattern in dict.fromkeys((run.design, run.pattern) for run in runs):
        for sizes in SIZES:
            values = [run.rmse[sizes] for run in runs if (run.design, run.pattern) == (design, pattern)]
            ours, theirs = fmean(values), paper_rmse(design, pattern, sizes)
            spread = stdev(values) if len(values) > 1 else 0.0
            cells.append(GPOCell(design, pattern, sizes, theirs, ours, spread, compare_with_paper(ours, theirs)))
    cpu_seconds = sum(run.cpu_seconds for run in runs)
    return GPOExperiment(settings, seeds, time.perf_counter() - began, cpu_seconds, tuple(cells), tuple(runs))


def _run_all(jobs: Sequence[tuple[str, str, int, GPOSettings]], workers: int, progress: Progress) -> list[GPORun]:
    progress("trainings", 0, len(jobs))
    runs: list[GPORun] = []
    if workers == 1:
        for job in jobs:
            runs.append(train_and_measure(*job))
            progress("trainings", len(runs), len(jobs))
        return runs
    # Processes, not threads: the GRU's many small steps would queue for Python's lock. Spawned, as torch has threads.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(stop,))
    try:
        for future in as_completed([pool.submit(_run_job, *job) for job in jobs]):
            runs.append(future.result())
            progress("trainings", len(runs), len(jobs))
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
    return runs


_stop: Any = None
"""In a worker: the event that tells it to stop."""


def _start_worker(stop: Any) -> None:
    global _stop
    _stop = stop
    # Ctrl-C reaches every process of a terminal; the parent is the one to answer it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _run_job(design: str, pattern: str, seed: int, settings: GPOSettings) -> GPORun:
    return train_and_measure(design, pattern, seed, settings, _stop.is_set)


# ------------------------------------------------------------------------------------------------------------- page


def render_experiment(experiment: GPOExperiment) -> str:
    """The experiment as an HTML page that needs nothing but itself: the table, and learned against true weights."""
    runs = experiment.runs
    designs = list(dict.fromkeys(run.design for run in runs))
    patterns = list(dict.fromkeys(run.pattern for run in runs))
    cells = {(cell.design, cell.pattern, cell.sizes): cell for cell in experiment.cells}
    rows = [
        (pattern, f"{sizes}, {span[0]}–{span[-1]}", [cells[design, pattern, sizes] for design in designs])
        for pattern in patterns
        for sizes, span in SIZES.items()
    ]
    return charts.render_page(
        "polysem.reproduction",
        "gpo_synthetic.html",
        title="GPO on synthetic patterns",
        experiment=experiment,
        designs=[DESIGNS[design] for design in designs],
        rows=rows,
        sections=[(pattern, list(_panels(pattern, runs, designs))) for pattern in patterns],
    )


def _panels(pattern: str, runs: Sequence[GPORun], designs: Sequence[str]) -> Iterator[Markup]:
    """The learned and the true coefficients, by size and design."""
    of_pattern = [run for run in runs if run.pattern == pattern]
    for size in SHOWN:
        true = coefficients(pattern, [size], size)[0].tolist()
        # One scale for a row of panels, so that designs can be compared.
        top = max(max(true), *(max(run.learned[size]) for run in of_pattern))
        for design in designs:
            title = f"n = {size}" + ("" if size in SIZES["seen"] else ", not seen in training")
            label = "position k, largest value first"
            chart = charts.Chart(title, label, "", (1, size), (0, top), whole_x=True, width=300, height=160)
            marks = charts.line(chart, list(enumerate(true, 1)), "true", dots=False)
            for run in of_pattern:
                if run.design == design:
                    marks += charts.line(chart, list(enumerate(run.learned[size], 1)), "c1", dots=False)
            yield charts.figure(chart, marks, f"Coefficients of {DESIGNS[design]} for a set of {size}.")
