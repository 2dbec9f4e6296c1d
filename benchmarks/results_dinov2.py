"""The methods of the papers and polysem's sets side by side over DINOv2-small tokens: docs/benchmarks/results.md.

Every row (`results_dinov2_rows.py`) is searched for its learning rate, dropout and epochs on train alone, a tenth of it
held out (`results_dinov2_search.py`); then it is trained so on all of train, once for each seed, and the weights of its
last step are measured on val. Everything runs in this one process. Finished runs are kept in --out and not repeated:
stopped at any moment, the same command goes on. First come the searches, then all rows with seed 0, then with seed 1, …
Whenever a run has finished, benchmarks/results/results-dinov2.json and the page are written anew.

    polysem weights get dinov2-small
    polysem features flickr8k --encoder patch --model dinov2-small --set grid=4 --out dinov2
    polysem features flickr8k --encoder transformer --model minilm --out minilm
    python benchmarks/results_dinov2.py --data flickr8k --features dinov2 --text-features minilm --out runs/dinov2
    python benchmarks/results_dinov2.py … --only sets sets-one sets-wide    # these rows alone
    python benchmarks/results_dinov2.py … --pages-only                      # the JSON and the page of what is there
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import results_dinov2_figures as figures
import results_dinov2_page as page
import results_dinov2_rows as rows
import torch
from results_dinov2_rows import Row, Trial
from results_dinov2_run import Bench, Cell, run
from results_dinov2_search import choose, search
from results_dinov2_summary import Summary

from polysem import atomic_write
from polysem.data import open_collection

ROOT = Path(__file__).parent.parent


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a collection with the splits train and val")
    parser.add_argument("--features", type=Path, help="store of the image features")
    parser.add_argument("--text-features", type=Path, help="store of the caption features")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--only", nargs="+", default=(), metavar="ROW", help="train these rows alone")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--search-only", action="store_true", help="search, and train no row")
    parser.add_argument("--rows", type=Path, help="a JSON file of other rows: see results_dinov2_rows.plan")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "results-dinov2.json")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the pages")
    parser.add_argument("--pages-only", action="store_true", help="train nothing")
    return parser.parse_args()


def write(summary: Summary, given: argparse.Namespace) -> dict[str, Any]:
    """The JSON, the figures and the page, of what is there."""
    entry = summary.entry()
    entry["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    atomic_write.write_text(given.output, json.dumps(entry, indent=1, ensure_ascii=False) + "\n")
    page.write(entry, given.docs, figures.draw(entry, given.docs / "images"))
    return entry


def main() -> None:
    given = parsed()
    torch.set_num_threads(1)
    whole = Bench(rows.plan(given.rows), open_collection(given.data), given.features, given.text_features, given.out)
    summary = Summary(whole, given.seeds)
    if given.pages_only:
        write(summary, given)
        return
    bench = Bench(rows.plan(given.rows, given.only), whole.data, given.features, given.text_features, given.out)
    began = time.monotonic()

    def told(what: str, row: Row, trial: Trial, cell: Cell) -> None:
        rsum = f"RSUM {cell['last_rsum']:.1f}" if "last_rsum" in cell else "stopped: its weights diverged"
        how = f"rate {trial.rate}, dropout {trial.dropout}, {trial.epochs} epochs"
        spent = f"{cell['processor_seconds']:.0f} s of processor time"
        print(f"[{(time.monotonic() - began) / 60:.0f} min] {what} {row.label}, {how}: {rsum}, {spent}", flush=True)

    for row in bench.plan.searched:
        search(bench, row, lambda row, trial, cell: told("search", row, trial, cell))
    if given.search_only:
        write(summary, given)
        return
    for seed in range(given.seeds):
        for row in bench.plan.rows.values():
            trial = choose(bench, row)
            if trial is None or bench.cell(row, trial, seed) is not None:
                continue
            told(f"seed {seed}", row, trial, run(bench, row, trial, seed))
        write(summary, given)


if __name__ == "__main__":
    main()
