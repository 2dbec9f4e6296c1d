"""The methods of the papers over EfficientNet-Lite grids: the second half of docs/benchmarks/results.md.

Every row (`results_rows.py`) is trained on train and measured on val, with the same frozen features, batches, steps,
width, optimiser and schedule, once for each seed. The weights of the last step are measured, never the best on val.
Every run is a process of one thread; first all rows with seed 0, then with seed 1, …, so that a run that is cut short
is a whole table of fewer seeds. Finished runs are kept in --out and not repeated: stopped at any moment, the same
command goes on. Whenever a run has finished, benchmarks/results/results-efficientnet.json and the second half of the
page are written anew.

    polysem features flickr8k --encoder grid --model efficientnet-lite0 --out grid-lite0
    polysem features flickr8k --encoder transformer --model minilm --out minilm
    python benchmarks/results_efficientnet.py --data flickr8k --features grid-lite0 --text-features minilm --out runs
    python benchmarks/results_efficientnet.py … --features-2 grid-lite2    # with the ensembles of two grids
    python benchmarks/results_efficientnet.py … --pages-only               # the JSON and the pages of what is there

Is a verdict one of the method, or of the learning rate? The first seed at a quarter of the rate, and then beside:

    python benchmarks/results_efficientnet.py … --seeds 1 --set optimiser.lr=5e-4 --output slow.json --docs elsewhere
    python benchmarks/results_efficientnet.py … --pages-only --beside slow.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from statistics import fmean
from typing import Any

import results_figures as figures
import results_page as page
import results_rows
import torch
from results_costs import costs, with_training
from results_rows import GROUPS, Row
from results_run import Bench, run
from results_summary import Summary, figures_beside

from polysem import atomic_write
from polysem.data import open_collection

ROOT = Path(__file__).parent.parent
Job = tuple[Row, int]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a collection with the splits train and val")
    parser.add_argument("--features", type=Path, help="store of the image features")
    parser.add_argument("--text-features", type=Path, help="store of the caption features")
    parser.add_argument("--features-2", type=Path, help="store of another grid's features, for the ensembles")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, help="these tables alone")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="passes over the images; some rows take twice as many")
    parser.add_argument(
        "--jobs", type=int, default=2, help="runs at the same time, each a process of one thread; 0: in this one"
    )
    parser.add_argument("--rows", type=Path, help="a JSON file of other rows: see results_rows.plan")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of all rows")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "results-efficientnet.json")
    parser.add_argument("--beside", type=Path, help="the --output of another rate, whose figures stand beside these")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the pages")
    parser.add_argument("--pages-only", action="store_true", help="train nothing")
    parser.add_argument("--job", nargs=2, metavar=("ROW", "SEED"), help=argparse.SUPPRESS)
    return parser.parse_args()


def wanted(bench: Bench, groups: Sequence[str], seeds: int) -> list[Job]:
    """Every run that is not there yet, each once: a row may stand in several tables."""
    rows = [row for row in bench.plan.rows.values() if set(row.groups) & set(groups) and bench.can_run(row)]
    places, jobs = set[Path](), []
    for seed in range(seeds):
        for row in rows:
            place = bench.place(row, seed)
            if place not in places and bench.cell(row, seed) is None:
                places.add(place)
                jobs.append((row, seed))
    return jobs


def carry_out(jobs: Sequence[Job], bench: Bench, workers: int, finished: Callable[[Job, int], None]) -> int:
    """Each in a process of its own, so many at a time, in order; without workers, in this one. How many failed."""
    if not workers:
        for row, seed in jobs:
            run(bench, row, seed)
            finished((row, seed), 0)
        return 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    running: set[subprocess.Popen[bytes]] = set()
    stopping = False

    def one(job: Job) -> int:
        if stopping:
            return 0
        row, seed = job
        log = bench.place(row, seed).with_suffix(".log")
        command = [sys.executable, __file__, *sys.argv[1:], "--job", row.name, str(seed)]
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
            running.add(process)
            code = process.wait()
            running.discard(process)
        if code == 0:
            log.unlink()
        return code

    failed = 0
    with ThreadPoolExecutor(workers) as pool:
        waiting: dict[Future[int], Job] = {pool.submit(one, job): job for job in jobs}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    job = waiting.pop(future)
                    failed += future.result() != 0
                    finished(job, future.result())
        except BaseException:
            stopping = True
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise
    return failed


def write(summary: Summary, given: argparse.Namespace) -> dict[str, Any]:
    """The JSON, the figures and both pages, of what is there."""
    entry = summary.entry()
    entry["cost"] = with_training(summary.bench, _kept(given.out / "cost.json"), given.seeds)
    entry["beside"] = figures_beside(_kept(given.beside)) if given.beside else None
    entry["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    atomic_write.write_text(given.output, json.dumps(entry, indent=1, ensure_ascii=False) + "\n")
    drawn = figures.draw(entry, given.docs / "images")
    page.write(entry, given.docs, drawn)
    return entry


def _kept(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def main() -> None:
    given = parsed()
    plan = results_rows.plan(given.epochs, given.rows, given.set)
    stores = (given.features, given.features_2)
    bench = Bench(plan, open_collection(given.data), stores, given.text_features, given.out)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.job is not None:
        torch.set_num_threads(1)
        run(bench, plan.rows[given.job[0]], int(given.job[1]))
        return
    summary = Summary(bench, given.seeds)
    if given.pages_only:
        write(summary, given)
        return
    jobs = wanted(bench, given.only, given.seeds)
    print(f"{len(jobs)} runs to do, {given.jobs} at a time; {given.out} keeps them.", flush=True)
    began, taken = time.monotonic(), []

    def finished(job: Job, code: int) -> None:
        row, seed = job
        taken.append(time.monotonic())
        left = (len(jobs) - len(taken)) * (taken[-1] - began) / len(taken) / 60
        cell = bench.cell(row, seed) or {}
        if code:
            told = f"FAILED, see {bench.place(row, seed).with_suffix('.log')}"
        elif "stopped" in cell:
            told = "stopped: its weights ran away"
        else:
            told = f"RSUM {cell['figures']['rsum']:.1f}, {cell['processor_seconds']:.0f} s of processor time"
        done = f"[{len(taken)}/{len(jobs)}]"
        print(f"{done} {row.label}, seed {seed}: {told}; about {left:.0f} min left", flush=True)
        write(summary, given)

    failed = carry_out(jobs, bench, given.jobs, finished)
    if "cost" in given.only and not (given.out / "cost.json").exists():
        # When nothing else runs: it takes times.
        atomic_write.write_text(given.out / "cost.json", json.dumps(costs(bench), indent=1) + "\n")
    entry = write(summary, given)
    cells = [cell for row in entry["rows"].values() for cell in row.get("runs", ())]
    if cells:
        each = fmean(cell["processor_seconds"] for cell in cells)
        print(f"{len(cells)} runs, {each:.0f} s of processor time each. Pages: {given.docs}")
    if failed:
        raise SystemExit(f"{failed} of {len(jobs)} runs failed; the same command tries them again.")


if __name__ == "__main__":
    main()
