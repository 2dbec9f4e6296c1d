"""What exact search of sets costs beside its alternatives, in one run, on one thread and on two.

One query at a time, the best 10 of 20k, 100k and (memory allowing) 1M sets of 4 × 256:
- certified: `Engine.search`, exact with bounds; brute: its own full scan; torch: the similarity's blocked code, topk;
- single: an exact scan of single vectors, the sets' means (faiss' flat index; torch's product where faiss is missing);
- mean + re-score: the best 100 of that scan, scored as sets; lance: LanceDB's multivector search, likewise re-scored.
recall: how many of the exact 10 each finds. Then 1000 images × 5000 texts of 4 × 1024 as batches, in both directions.

Sets are "decaying" (synthetic, dimensions weigh i^-0.5), "flat" (pure noise), "real" (all captions of --data by the
model --model, searched by its images) and "grown" (the real ones and noisy copies of them, see `search_data.grown`).

Runs alternate within one process. One thread counts time of the processor, two threads time on the wall. Machines are
noisy: only the ratios mean something.

    python benchmarks/search.py --model runs/small --data scenes --features scenes-grid --text-features scenes-text
    python benchmarks/search.py --sizes 20000 --only single
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import search_data
import search_peers as peers
import torch
from rich.console import Console
from rich.table import Table
from search_data import Sets
from search_peers import TOP

from polysem.search.engine import Engine, native

RESULTS = Path(__file__).parent / "results" / "search.json"
SIMILARITY = {"name": "smooth_chamfer", "alpha": 16.0}
WIDTH, SIZES, QUERIES, ASKED = 256, (20_000, 100_000, 1_000_000), 60, 8
BATCH_IMAGES, BATCH_TEXTS, BATCH_WIDTH, BATCH_ROUNDS = 1000, 5000, 1024, 3
# From this size on float16, fewer queries and no torch, whose blocks are float32.
LARGE = 500_000
WANTED = {
    "decaying 100k: certified over brute": 2.5,
    "flat: certified over brute": 1 / 1.1,
    "certified in single scans": 2.0,
    "batch over torch": 1.6,
}
CLOCKS = {1: time.process_time, 2: time.perf_counter}
Case = tuple[str, int, Callable[[], tuple[Sets, Sets, Sets | None]]]


def compare(runs: dict[str, Callable[[], Any]], clock: Callable[[], float]) -> dict[str, tuple[float, Any]]:
    found = {}
    for name, run in runs.items():
        start = clock()
        result = run()
        found[name] = (clock() - start, result)
    return found


def percentiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{p}": 1e3 * float(np.percentile(seconds, p)) for p in (50, 99)}


def searches(engine: Engine, skip: list[str]) -> tuple[dict[str, peers.Search], dict[str, float], dict[str, str]]:
    """Every way to search these items; the bytes per item of the others; and who was left out, with the reason."""
    items, width = len(engine.vectors), engine.vectors.shape[2]
    single, rescored = peers.single_flat(engine)
    found: dict[str, peers.Search] = {
        "certified": lambda query: engine.search(query, TOP).positions,
        "brute": lambda query: engine.search(query, TOP, brute=True).positions,
        "torch": peers.torch_brute(engine),
        "single": single,
        "mean + re-score": rescored,
    }
    sizes, left_out = {"single": 4.0 * width}, {}
    if items >= LARGE:
        del found["torch"]
        left_out["torch"] = "the items are float16 to fit in memory"
    if "lance" in skip:
        left_out["lance"] = "skipped on request"
    elif peers.lancedb is None:
        left_out["lance"] = "lancedb is not installed"
    elif items > peers.LANCE_ITEMS:
        left_out["lance"] = f"indexing more than {peers.LANCE_ITEMS} items takes minutes"
    else:
        found["lance"], sizes["lance"] = peers.lance(engine)
    return found, sizes, left_out


def measure(name: str, vectors: Sets, queries: Sets, asked: Sets | None, skip: list[str]) -> dict[str, Any]:
    """asked: queries of the same kind, though others, that the engine is measured with, as an index does."""
    peers.set_threads(1)
    start = time.process_time()
    engine = Engine.build(vectors, SIMILARITY, queries=asked)
    build_seconds = time.process_time() - start
    ways, sizes, left_out = searches(engine, skip)
    items, result = len(vectors), {}
    sketches = sum(array.nbytes for key, array in engine.state()[1].items() if key != "rotation") / items
    for threads, clock in CLOCKS.items():
        peers.set_threads(threads)
        times: dict[str, list[float]] = {way: [] for way in ways}
        hits: dict[str, float] = dict.fromkeys(ways, 0.0)
        truth = [engine.search(query, TOP, brute=True).positions for query in queries]
        # LanceDB has threads of its own, which go on after its answer: it is measured when the others are done.
        for together in ([way for way in ways if way != "lance"], [way for way in ways if way == "lance"]):
            for query, right in [(queries[0], truth[0]), *zip(queries, truth, strict=True)]:
                once = compare({way: lambda search=ways[way]: search(query) for way in together}, clock)  # noqa: B023
                for way, (seconds, positions) in once.items():
                    times[way].append(seconds)
                    hits[way] += len(np.intersect1d(positions, right)) / TOP
        ms = {way: percentiles(seconds[1:]) for way, seconds in times.items()}  # the first warms up
        median = {way: ms[way]["p50"] for way in ms}
        result[f"threads_{threads}"] = {
            "ms": ms,
            "recall": {way: found / (len(queries) + 1) for way, found in hits.items()},
            "certified_over_brute": median["brute"] / median["certified"],
            "certified_over_torch": median["torch"] / median["certified"] if "torch" in median else None,
            "certified_in_single_scans": median["certified"] / median["single"],
        }
    pairs = [(engine.search(query, TOP), engine.search(query, TOP, brute=True)) for query in queries]
    return {
        "sets": name,
        "items": items,
        "dtype": str(vectors.dtype),
        "plan": asdict(engine.plan),
        "build_seconds": build_seconds,
        "identical_to_brute": float(np.mean([_same(a, b) for a, b in pairs])),
        "scored_share": float(np.mean([hits.scored for hits, _ in pairs])) / items,
        # The vectors may stay on disk, as a memory map of which only what is scored in full is read.
        "bytes_per_item": {
            "disk": vectors.nbytes / items + sketches,
            "ram": vectors.nbytes / items + sketches,
            "ram_with_mapped_vectors": sketches,
            "others": sizes,
        },
        "left_out": left_out,
        **result,
    }


def _same(a: Any, b: Any) -> bool:
    return bool((a.positions == b.positions).all() and (a.scores == b.scores).all())


def measure_batch(spectrum: str) -> dict[str, Any]:
    texts, images = search_data.synthetic(BATCH_TEXTS, BATCH_IMAGES, BATCH_WIDTH, spectrum)
    found: dict[str, Any] = {"sets": spectrum}
    for direction, queries, items in (("image_to_text", images, texts), ("text_to_image", texts, images)):
        engine = Engine.build(items, SIMILARITY)
        part, a, b = engine.scoring.part, torch.from_numpy(queries), torch.from_numpy(items)
        runs = {"ours": lambda: engine.search_batch(queries, TOP), "torch": lambda: part.scores(a, b).topk(TOP).indices}  # noqa: B023
        found[direction] = {"plan": asdict(engine.plan)}
        for threads, clock in CLOCKS.items():
            peers.set_threads(threads)
            rounds = [compare(runs, clock) for _ in range(BATCH_ROUNDS)]
            seconds = {way: float(np.median([once[way][0] for once in rounds])) for way in runs}
            ours = np.stack([hits.positions for hits in rounds[0]["ours"][1]])
            found[direction][f"threads_{threads}"] = {
                "seconds": seconds,
                "speedup": seconds["torch"] / seconds["ours"],
                "same_place_as_float32": float((ours == rounds[0]["torch"][1].numpy()).mean()),
            }
        peers.set_threads(1)
    return found


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for items in arguments.sizes:
        queries, dtype = (10, np.float16) if items >= LARGE else (QUERIES, np.float32)
        for spectrum in ("decaying", "flat"):
            yield spectrum, items, lambda: (*search_data.synthetic(items, queries, WIDTH, spectrum, dtype), None)  # noqa: B023
    if arguments.model is not None:
        images, texts = search_data.real(
            arguments.model, arguments.data, arguments.features, arguments.text_features, arguments.embeddings
        )
        yield "real", len(texts), lambda: (texts, images[:QUERIES], images[-ASKED:])
        for items in (size for size in arguments.sizes if len(texts) < size < LARGE):
            yield "grown", items, lambda: (search_data.grown(texts, items), images[:QUERIES], images[-ASKED:])  # noqa: B023


def enough_memory(items: int) -> bool:
    """Whether three times the vectors as float16 are free: for them, their means, sketches and what is on the way."""
    free = psutil.virtual_memory().available
    return items < LARGE or free > 3 * items * search_data.K * WIDTH * 2


def show_single(rows: list[dict[str, Any]], threads: int) -> Table:
    table = Table(
        title=f"One query, {'processor' if threads == 1 else 'wall'} time on {threads} thread(s): p50 / p99 ms, recall"
    )
    ways = ("certified", "brute", "torch", "single", "mean + re-score", "lance")
    for column in ("sets", "items", *ways, "over brute", "single scans", "same"):
        table.add_column(column, justify="right")
    for row in rows:
        found = row[f"threads_{threads}"]
        table.add_row(
            row["sets"],
            f"{row['items']:,}",
            *(
                f"{ms['p50']:.1f} / {ms['p99']:.1f}, {found['recall'][way]:.2f}"
                if (ms := found["ms"].get(way))
                else "-"
                for way in ways
            ),
            f"{found['certified_over_brute']:.2f}×",
            f"{found['certified_in_single_scans']:.2f}×",
            f"{row['identical_to_brute']:.0%}",
        )
    return table


def show_sizes(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Bytes per item")
    for column in (
        "sets",
        "items",
        "type",
        "on disk",
        "in RAM",
        "with mapped vectors",
        "single",
        "lance",
        "plan",
        "scored",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        size = row["bytes_per_item"]
        numbers = (
            size["disk"],
            size["ram"],
            size["ram_with_mapped_vectors"],
            size["others"]["single"],
            size["others"].get("lance"),
        )
        plan = " → ".join(map(str, row["plan"]["prefixes"])) or "none"
        cells = ("-" if number is None else f"{number:,.0f}" for number in numbers)
        table.add_row(row["sets"], f"{row['items']:,}", row["dtype"], *cells, plan, f"{row['scored_share']:.2%}")
    return table


def show_batch(rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{BATCH_IMAGES} × {BATCH_TEXTS} sets of {search_data.K} × {BATCH_WIDTH}, the best {TOP}")
    for column in ("sets", "direction", "threads", "ours", "torch", "speedup"):
        table.add_column(column, justify="right")
    for row in rows:
        for direction in ("image_to_text", "text_to_image"):
            for threads in CLOCKS:
                found = row[direction][f"threads_{threads}"]
                seconds = (f"{found['seconds'][way]:.2f} s" for way in ("ours", "torch"))
                table.add_row(row["sets"], direction, str(threads), *seconds, f"{found['speedup']:.2f}×")
    return table


def environment() -> dict[str, Any]:
    found = {"machine": platform.machine(), "cores": os.cpu_count(), "native": native.library() is not None}
    modules = {"faiss-cpu": peers.faiss, "lancedb": peers.lancedb, "torch": torch}
    return found | {name: version(name) if module is not None else None for name, module in modules.items()}


def write(results: dict[str, Any], path: Path) -> None:
    """After every case: a run that is stopped leaves what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["single", "batch"], help="measure one half and keep the other's last result")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many items to search")
    parser.add_argument("--skip", choices=["lance"], nargs="+", default=[], help="LanceDB takes minutes to index")
    parser.add_argument("--model", type=Path, help="a trained model, for real embeddings")
    parser.add_argument("--data", type=Path, help="the collection that it embeds")
    parser.add_argument("--features", type=Path, help="store of the images' features")
    parser.add_argument("--text-features", type=Path, help="store of the captions' features")
    parser.add_argument("--embeddings", type=Path, help="file to keep the embeddings in, used if it is there")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    if (arguments.model is None) != (arguments.data is None):
        parser.error("--model and --data go together")
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.only and arguments.out.exists() else {}
    results |= {"environment": environment(), "wanted": WANTED}
    console = Console()
    torch.set_grad_enabled(False)
    if arguments.only != "batch":
        results["skipped"] = [size for size in arguments.sizes if not enough_memory(size)]
        arguments.sizes = [size for size in arguments.sizes if size not in results["skipped"]]
        if results["skipped"]:
            console.print(f"Too little free memory for {results['skipped']} items: left out.")
        results["single"] = []
        for name, items, make in cases(arguments):
            with console.status(f"{items:,} {name} sets"):
                results["single"].append(measure(name, *make(), arguments.skip))
            write(results, arguments.out)
        for threads in CLOCKS:
            console.print(show_single(results["single"], threads))
        console.print(show_sizes(results["single"]))
    if arguments.only != "single":
        with console.status("batches"):
            results["batch"] = [measure_batch(spectrum) for spectrum in ("decaying", "flat")]
        console.print(show_batch(results["batch"]))
        write(results, arguments.out)


if __name__ == "__main__":
    main()
