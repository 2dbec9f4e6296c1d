"""All trainings of the synthetic experiment, side by side, and what they come to beside the paper's table."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from polysem.errors import ConfigError, unknown
from polysem.reproduction.gpo_synthetic import Run, Settings, carry_out
from polysem.reproduction.gpo_table import DESIGNS, SIZES, Sizes, Verdict, paper, verdict
from polysem.reproduction.patterns import PATTERNS


@dataclass(frozen=True)
class Cell:
    """A cell of the table. ours: the mean over seeds; spread: their standard deviation, 0 for a single one."""

    design: str
    pattern: str
    sizes: Sizes
    paper: float
    ours: float
    spread: float
    verdict: Verdict


@dataclass(frozen=True)
class Experiment:
    """seconds: on the clock. cpu_seconds: summed over all trainings."""

    settings: Settings
    seeds: int
    seconds: float
    cpu_seconds: float
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]

    def met(self, design: str) -> tuple[int, int]:
        """How many cells of a design agree with the paper's, of how many."""
        verdicts = [cell.verdict for cell in self.cells if cell.design == design]
        return verdicts.count("met"), len(verdicts)


def reproduce(
    designs: Sequence[str] = tuple(DESIGNS),
    patterns: Sequence[str] = tuple(PATTERNS),
    seeds: int = 1,
    settings: Settings | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Experiment:
    """Train every design on every pattern with `seeds` seeds.

    workers: processes, by default one for each core; 1 stays in this process. A script of yours that calls this needs
    the usual `if __name__ == "__main__":`.
    """
    for kind, given, known in (("design", designs, DESIGNS), ("pattern", patterns, PATTERNS)):
        for name in given:
            if name not in known:
                raise unknown(kind, name, known)
    if seeds < 1:
        raise ConfigError(f"seeds must be 1 or more, got {seeds}.")
    settings = settings or Settings()
    began = time.perf_counter()
    # Slow designs first, so that no core waits at the end for the last of them.
    slow_first = sorted(dict.fromkeys(designs), key=lambda design: "bigru" not in design)
    jobs = [(d, p, s, settings) for d in slow_first for p in dict.fromkeys(patterns) for s in range(seeds)]
    runs = _all(jobs, min(workers or os.cpu_count() or 1, len(jobs)), progress)
    runs.sort(key=lambda run: (list(DESIGNS).index(run.design), list(PATTERNS).index(run.pattern), run.seed))
    return Experiment(
        settings,
        seeds,
        time.perf_counter() - began,
        sum(run.cpu_seconds for run in runs),
        tuple(_cells(runs)),
        tuple(runs),
    )


def _cells(runs: Sequence[Run]) -> list[Cell]:
    cells = []
    for design, pattern in dict.fromkeys((run.design, run.pattern) for run in runs):
        for sizes in SIZES:
            values = [run.rmse[sizes] for run in runs if (run.design, run.pattern) == (design, pattern)]
            ours, theirs = fmean(values), paper(design, pattern, sizes)
            spread = stdev(values) if len(values) > 1 else 0.0
            cells.append(Cell(design, pattern, sizes, theirs, ours, spread, verdict(ours, theirs)))
    return cells


Job = tuple[str, str, int, Settings]


def _all(jobs: Sequence[Job], workers: int, progress: Callable[[int, int], None]) -> list[Run]:
    progress(0, len(jobs))
    runs: list[Run] = []
    if workers == 1:
        for job in jobs:
            runs.append(carry_out(*job))
            progress(len(runs), len(jobs))
        return runs
    # Processes, not threads: the GRU's many small steps would queue for Python's lock. Spawned, as torch has threads.
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(stop,))
    try:
        for future in as_completed([pool.submit(_work, *job) for job in jobs]):
            runs.append(future.result())
            progress(len(runs), len(jobs))
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
    return runs


_stop: Any = None
"""In a worker: the event that tells it to give up."""


def _begin(stop: Any) -> None:
    global _stop
    _stop = stop
    # Ctrl-C reaches every process of a terminal; the parent is the one to answer it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _work(design: str, pattern: str, seed: int, settings: Settings) -> Run:
    return carry_out(design, pattern, seed, settings, _stop.is_set)
