"""VSE∞'s synthetic experiment (supplement, section 2.3): which designs of GPO can learn which pooling?

A GPO sees random sets and what a known pooling makes of them. Its loss is on the pooled vectors; what is measured are
its coefficients against the true ones. docs/reproduce.md says what the paper leaves open and what we chose.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

import torch
from markupsafe import Markup
from torch import Tensor
from torch.nn import functional as F

from polysem import masked_ops
from polysem.errors import ConfigError, unknown
from polysem.features import LocalFeatures
from polysem.pooling import GPO
from polysem.progress import Progress, ignore

Sizes = Literal["seen", "smaller", "larger"]
PaperVerdict = Literal["met", "better", "worse"]

SIZES: dict[Sizes, range] = {"seen": range(20, 101), "smaller": range(10, 20), "larger": range(101, 121)}
"""Sizes of the sets. Training sees the first range only."""

DESIGNS = {
    "interp": "Interp.",
    "cos-sin-mlp": "Cos/Sin+MLP",
    "index-bigru": "Index+BiGRU",
    "cos-sin-bigru": "Cos/Sin+BiGRU",
}
"""The coefficient generators, by our name and the paper's."""

PAPER: dict[str, tuple[float, ...]] = {
    "A": (0.0, 0.0, 0.0, 0.012, 0.054, 0.006, 0.002, 0.006, 0.003, 0.0, 0.002, 0.0),
    "M-1": (0.065, 0.017, 0.070, 0.003, 0.003, 0.003, 0.002, 0.004, 0.001, 0.005, 0.010, 0.004),
    "M-10": (0.030, 0.141, 0.014, 0.047, 0.093, 0.030, 0.026, 0.052, 0.018, 0.010, 0.031, 0.007),
    "T-50%": (0.011, 0.039, 0.005, 0.032, 0.096, 0.026, 0.011, 0.049, 0.007, 0.006, 0.046, 0.004),
    "L": (0.004, 0.016, 0.002, 0.022, 0.065, 0.028, 0.008, 0.015, 0.005, 0.0, 0.005, 0.001),
}
"""Table 6 of the supplement: RMSE by pattern, for each design of `DESIGNS` at seen, smaller and larger sizes."""

SHOWN = (10, 60, 120)
"""Sizes whose coefficients are kept for the plot: the smallest, the middle of those seen, the largest."""

_LARGEST = max(size for sizes in SIZES.values() for size in sizes)


@dataclass(frozen=True)
class GPOSettings:
    """One for all designs and patterns. sizes_per_step: how many of the 81 training sizes each step draws a set of.
    width: dimensions of the random features."""

    steps: int = 1500
    learning_rate: float = 3e-3
    sizes_per_step: int = 20
    width: int = 16

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps must be 1 or more, got {self.steps}.")


@dataclass(frozen=True)
class GPORun:
    """What one training gave. rmse: by range of sizes. learned: coefficients of the sizes in `SHOWN`."""

    design: str
    pattern: str
    seed: int
    rmse: dict[Sizes, float]
    learned: dict[int, list[float]]
    cpu_seconds: float


_stop: Any = None
"""In a worker: the event that tells it to stop."""


def train_and_measure(
    design: str, pattern: str, seed: int, settings: GPOSettings, should_stop: Callable[[], bool] = lambda: False
) -> GPORun:
    """Train one design on random sets of the seen sizes of one pattern, and measure it. should_stop: asked before every
    step."""
    began, seen = time.process_time(), SIZES["seen"]
    truth = coefficients(pattern, seen, seen[-1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gpo = build_gpo(design)
        optimiser = torch.optim.Adam(gpo.parameters(), settings.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
        for _ in range(settings.steps):
            if should_stop() or (_stop is not None and _stop.is_set()):
                raise KeyboardInterrupt
            drawn = torch.randperm(len(seen))[: settings.sizes_per_step]
            sets = LocalFeatures.from_lengths(torch.rand(len(drawn), seen[-1], settings.width), drawn + seen[0])
            loss = F.mse_loss(gpo(sets), pool(sets, truth[drawn]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    errors = {
        name: rmse(learned_coefficients(gpo, sizes), coefficients(pattern, sizes, max(sizes)), sizes)
        for name, sizes in SIZES.items()
    }
    learned = {size: learned_coefficients(gpo, [size])[0].tolist() for size in SHOWN}
    return GPORun(design, pattern, seed, errors, learned, time.process_time() - began)


def build_gpo(design: str) -> GPO:
    """All four end in GPO's own softmax; rows of the position table past 100 are never trained."""
    if design == "interp":
        return GPO(generator="interpolation")
    if design == "cos-sin-mlp":
        return GPO(generator="mlp")
    return GPO(generator="bigru", position="index" if design == "index-bigru" else "sincos", max_length=_LARGEST)


def pool(sets: LocalFeatures, theta: Tensor) -> Tensor:
    """(B, N, D) sets pooled with known coefficients (B, N) of their sorted values -> (B, D)."""
    return torch.einsum("bn,bnd->bd", theta, masked_ops.sort_descending(sets.values, sets.mask))


@torch.no_grad()
def learned_coefficients(gpo: GPO, sizes: Sequence[int]) -> Tensor:
    """(S, largest size): a GPO's coefficients for sets of these sizes, 0 past each."""
    # They depend on the size alone: any features will do.
    return gpo.coefficients(LocalFeatures.from_lengths(torch.zeros(len(sizes), max(sizes), 1), list(sizes)))


def rmse(found: Tensor, true: Tensor, sizes: Sequence[int]) -> float:
    """The root mean square error over a set's positions, averaged over the sizes."""
    squares = (found - true).square().sum(1) / torch.tensor(sizes)
    return float(squares.sqrt().mean())


PATTERNS: dict[str, Callable[[int], Tensor]] = {
    "A": torch.ones,
    "M-1": lambda n: (torch.arange(n) < 1).float(),
    "M-10": lambda n: (torch.arange(n) < 10).float(),
    # An odd size counts its middle value in. (Rounding to even would move the edge back and forth from size to size.)
    "T-50%": lambda n: (torch.arange(n) < (n + 1) // 2).float(),
    "L": lambda n: torch.arange(n - 1.0, -1.0, -1.0),  # falls to exactly 0 at the last position
}
"""Name as in the paper -> size n -> (n,) weights of the sorted values, before they are made to sum to 1."""


def coefficients(pattern: str, sizes: Sequence[int], padded: int) -> Tensor:
    """(S, padded): the weights of sets of these sizes, each row summing to 1, with 0 past a set's size."""
    theta = torch.zeros(len(sizes), padded)
    for row, n in zip(theta, sizes, strict=True):
        weights = PATTERNS[pattern](n)
        row[:n] = weights / weights.sum()
    return theta


def paper_rmse(design: str, pattern: str, sizes: Sizes) -> float:
    """The paper's value of a cell."""
    return PAPER[pattern][len(SIZES) * list(DESIGNS).index(design) + list(SIZES).index(sizes)]


def compare_with_paper(ours: float, theirs: float) -> PaperVerdict:
    """met: within 0.004 or half of the paper's value, whichever is more. Outside that, which side it is on."""
    if abs(ours - theirs) <= max(0.004, theirs / 2):
        return "met"
    return "better" if ours < theirs else "worse"


@dataclass(frozen=True)
class GPOCell:
    """A cell of the table. ours: the mean over seeds; spread: their standard deviation, 0 for a single one."""

    design: str
    pattern: str
    sizes: Sizes
    paper: float
    ours: float
    spread: float
    verdict: PaperVerdict


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
        for future in as_completed([pool.submit(train_and_measure, *job) for job in jobs]):
            runs.append(future.result())
            progress("trainings", len(runs), len(jobs))
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
    return runs


def _start_worker(stop: Any) -> None:
    global _stop
    _stop = stop
    # Ctrl-C reaches every process of a terminal; the parent is the one to answer it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def render_experiment(experiment: GPOExperiment) -> str:
    """The experiment as an HTML page that needs nothing but itself: the table, and learned against true weights."""
    from polysem.training import charts  # a heavy package, which the workers do without

    designs = list(dict.fromkeys(run.design for run in experiment.runs))
    patterns = list(dict.fromkeys(run.pattern for run in experiment.runs))
    cells = {(cell.design, cell.pattern, cell.sizes): cell for cell in experiment.cells}
    rows = [
        (pattern, f"{sizes}, {span[0]}–{span[-1]}", [cells[design, pattern, sizes] for design in designs])
        for pattern in patterns
        for sizes, span in SIZES.items()
    ]

    def draw_panels(pattern: str) -> Iterator[Markup]:
        """The learned and the true coefficients, by size and design."""
        runs = [run for run in experiment.runs if run.pattern == pattern]
        for size in SHOWN:
            title = f"n = {size}" + ("" if size in SIZES["seen"] else ", not seen in training")
            label = "position k, largest value first"
            true = coefficients(pattern, [size], size)[0].tolist()
            # One scale for a row of panels, so that designs can be compared.
            top = max(max(true), *(max(run.learned[size]) for run in runs))
            chart = charts.Chart(title, label, "", (1, size), (0, top), whole_x=True, width=300, height=160)
            for design in designs:
                marks = charts.line(chart, list(enumerate(true, 1)), "true", dots=False)
                for run in runs:
                    if run.design == design:
                        marks += charts.line(chart, list(enumerate(run.learned[size], 1)), "c1", dots=False)
                yield charts.figure(chart, marks, f"Coefficients of {DESIGNS[design]} for a set of {size}.")

    return charts.render_page(
        "polysem.reproduction",
        "gpo_synthetic.html",
        title="GPO on synthetic patterns",
        experiment=experiment,
        designs=[DESIGNS[design] for design in designs],
        rows=rows,
        sections=[(pattern, list(draw_panels(pattern))) for pattern in patterns],
    )
