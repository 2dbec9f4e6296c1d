"""What each part costs, side by side in one run.

Poolings and set predictors are compared with mean pooling (time) and with the slowest of them (items per second, the
papers' "#OIPs"); smooth-Chamfer is compared with its formula evaluated in one shot (time and peak memory). Machines are
noisy: only the ratios mean something.

    python benchmarks/core.py                  # the whole table, a few minutes
    python benchmarks/core.py --only scores    # smooth-Chamfer alone
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

import polysem

RESULTS = Path(__file__).parent / "results" / "core.json"
ITEMS, TOKENS, DIM = 128, 36, 1024
IMAGES, TEXTS, SET, SET_DIM = 1000, 5000, 4, 256
PREDICTORS = ["slots", "transformer", "pie_net"]


def seconds(run: Callable[[], object], at_least: float) -> float:
    """Median time of one run, over as many as fill `at_least` seconds (three or more)."""
    run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < at_least:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def part_runs(name: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward pass without gradients and a training step (forward, backward, fused AdamW) of one part."""
    torch.manual_seed(0)
    values = torch.randn(ITEMS, TOKENS, DIM)
    mask = torch.ones(ITEMS, TOKENS, dtype=torch.bool)
    global_feature = torch.randn(ITEMS, DIM)
    if name in PREDICTORS:
        part: torch.nn.Module = polysem.sets.build(name, dim=DIM)

        def call(x: Tensor) -> Tensor:
            vectors: Tensor = part(polysem.LocalFeatures(x, mask), global_feature).vectors
            return vectors
    else:
        part = polysem.pooling.build(name, dim=DIM)

        def call(x: Tensor) -> Tensor:
            pooled: Tensor = part(polysem.LocalFeatures(x, mask))
            return pooled

    trained = values.clone().requires_grad_()
    weights = list(part.parameters())
    optimiser = torch.optim.AdamW(weights, fused=True) if weights else None

    def forward() -> None:
        part.eval()
        with torch.no_grad():
            call(values)

    def step() -> None:
        part.train()
        trained.grad = None
        call(trained).square().sum().backward()
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return forward, step


def measure_parts(at_least: float) -> dict[str, dict[str, float]]:
    names = [*polysem.pooling.names(), *PREDICTORS]
    found: dict[str, dict[str, float]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("parts", total=2 * len(names))
        for name in names:
            forward, step = part_runs(name)
            progress.update(task, description=f"{name}: forward")
            forward_seconds = seconds(forward, at_least)
            progress.advance(task)
            progress.update(task, description=f"{name}: training step")
            step_seconds = seconds(step, at_least)
            progress.advance(task)
            found[name] = {"forward_seconds": forward_seconds, "step_seconds": step_seconds}
    mean, slowest = found["mean"], {key: max(row[key] for row in found.values()) for key in found["mean"]}
    for row in found.values():
        for key in ("forward", "step"):
            took = row[f"{key}_seconds"]
            row[f"{key}_cost_vs_mean"] = took / mean[f"{key}_seconds"]
            row[f"{key}_oips"] = slowest[f"{key}_seconds"] / took
    return found


def sets() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    a, b = (torch.randn(count, SET, SET_DIM) for count in (IMAGES, TEXTS))
    return torch.nn.functional.normalize(a, dim=-1), torch.nn.functional.normalize(b, dim=-1)


def one_shot(a: Tensor, b: Tensor) -> Tensor:
    """The printed formula, all pairs at once."""
    c = torch.einsum("ikd,tld->itkl", a, b)
    return ((16 * c).logsumexp(-1).mean(-1) + (16 * c).logsumexp(-2).mean(-1)) / 32


def blocked(a: Tensor, b: Tensor) -> Tensor:
    return polysem.similarity.build("smooth_chamfer", alpha=16.0).scores(a, b)


WAYS = {"one_shot": one_shot, "blocked": blocked}


def peak_mb(way: str) -> float:
    """Peak memory that scoring adds to a fresh process, its result included."""
    script = [sys.executable, __file__, "--peak", way]
    return float(subprocess.run(script, capture_output=True, text=True, check=True).stdout)


def high_water_mb() -> float:
    """The most memory this process has held. Linux carries getrusage's figure over from the parent, /proc's not."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def report_peak(way: str) -> None:
    a, b = sets()
    with torch.no_grad():
        WAYS[way](a[:4], b[:4])  # the libraries' own start-up memory is not the method's
        before = high_water_mb()
        WAYS[way](a, b)
    print(high_water_mb() - before)


def measure_scores() -> dict[str, float]:
    a, b = sets()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with Progress(console=Console(stderr=True)) as progress, torch.no_grad():
        task = progress.add_task("smooth-Chamfer: time", total=5 * len(WAYS) + len(WAYS))
        difference = float((one_shot(a, b) - blocked(a, b)).abs().max())
        for _ in range(5):  # alternating, so that a disturbance hits both
            for way, score in WAYS.items():
                start = time.perf_counter()
                score(a, b)
                times[way].append(time.perf_counter() - start)
                progress.advance(task)
        peaks = {}
        for way in WAYS:
            progress.update(task, description=f"smooth-Chamfer: memory of {way}")
            peaks[way] = peak_mb(way)
            progress.advance(task)
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    return {
        "one_shot_seconds": medians["one_shot"],
        "blocked_seconds": medians["blocked"],
        "speedup": medians["one_shot"] / medians["blocked"],
        "one_shot_peak_mb": peaks["one_shot"],
        "blocked_peak_mb": peaks["blocked"],
        "memory_share": peaks["blocked"] / peaks["one_shot"],
        "largest_difference": difference,
    }


def show_parts(found: dict[str, dict[str, float]]) -> Table:
    table = Table(title=f"{ITEMS} items of {TOKENS} tokens, width {DIM}; cost relative to mean, #OIPs to the slowest")
    for column in ("part", "forward cost", "forward #OIPs", "training cost", "training #OIPs"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, row in sorted(found.items(), key=lambda entry: entry[1]["forward_seconds"]):
        table.add_row(
            name,
            f"{row['forward_cost_vs_mean']:.1f}×",
            f"{row['forward_oips']:.1f}×",
            f"{row['step_cost_vs_mean']:.1f}×",
            f"{row['step_oips']:.1f}×",
        )
    return table


def show_scores(found: dict[str, float]) -> Table:
    table = Table(title=f"smooth-Chamfer, {IMAGES} × {TEXTS} sets of {SET} × {SET_DIM}")
    for column in ("", "one shot", "ours", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row(
        "time",
        f"{found['one_shot_seconds']:.2f} s",
        f"{found['blocked_seconds']:.2f} s",
        f"{found['speedup']:.2f}× faster",
    )
    table.add_row(
        "peak memory",
        f"{found['one_shot_peak_mb']:.0f} MB",
        f"{found['blocked_peak_mb']:.0f} MB",
        f"{found['memory_share']:.1%}",
    )
    table.add_row("largest difference", "", f"{found['largest_difference']:.1e}", "")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["parts", "scores"], help="measure one half and keep the other's last result")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time to spend on each measurement")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--peak", choices=list(WAYS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        report_peak(arguments.peak)
        return
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.only and arguments.out.exists() else {}
    results["environment"] = {
        "torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()
    }  # fmt: skip
    console = Console()
    if arguments.only != "scores":
        results["parts"] = measure_parts(arguments.seconds)
        console.print(show_parts(results["parts"]))
    if arguments.only != "parts":
        results["smooth_chamfer"] = measure_scores()
        console.print(show_scores(results["smooth_chamfer"]))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
