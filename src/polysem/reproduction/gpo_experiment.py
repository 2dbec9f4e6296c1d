"""All trainings of the synthetic experiment, side by side, and what they come to beside the paper's table."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from polysem.errors import ConfigError, unknown
from polysem.progress import Progress, ignore
from polysem.reproduction.gpo_synthetic import (
    DESIGNS,
    PATTERNS,
    SIZES,
    Agreement,
    GPORun,
    GPOSettings,
    Sizes,
    compare_with_paper,
    paper_rmse,
    train_and_measure,
)


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
    return GPOExperiment(
        settings,
        seeds,
        time.perf_counter() - began,
        sum(run.cpu_seconds for run in runs),
        tuple(_build_cells(runs)),
        tuple(runs),
    )


def _build_cells(runs: Sequence[GPORun]) -> list[GPOCell]:
    cells = []
    for design, pattern in dict.fromkeys((run.design, run.pattern) for run in runs):
        for sizes in SIZES:
            values = [run.rmse[sizes] for run in runs if (run.design, run.pattern) == (design, pattern)]
            ours, theirs = fmean(values), paper_rmse(design, pattern, sizes)
            spread = stdev(values) if len(values) > 1 else 0.0
            cells.append(GPOCell(design, pattern, sizes, theirs, ours, spread, compare_with_paper(ours, theirs)))
    return cells


Job = tuple[str, str, int, GPOSettings]


def _run_all(jobs: Sequence[Job], workers: int, progress: Progress) -> list[GPORun]:
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
