"""What exact search of sets costs beside its alternatives, on one thread, in one run.

One query against 20k and 100k sets of 4 × 256: with bounds (what `Engine.search` does), our own full scan, the
similarity's blocked torch code with topk, and an exact scan of single vectors of the same width (faiss' flat index
where it is installed, else torch's matrix-vector product). Dimensions weigh i^-0.5 ("decaying") or alike ("flat", pure
noise). Then 1000 × 5000 sets of 4 × 1024 in one batch. Times are of the processor; machines are noisy: only the ratios
mean something.

    python benchmarks/search_engine.py                 # all, some minutes
    python benchmarks/search_engine.py --only batch
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from polysem import similarity
from polysem.search.engine import Engine, native

RESULTS = Path(__file__).parent / "results" / "search_engine.json"
SIMILARITY = {"name": "smooth_chamfer", "alpha": 16.0}
K, WIDTH, TOP, TOPICS = 4, 256, 10, 200
SIZES, QUERIES = (20_000, 100_000), 40
BATCH_QUERIES, BATCH_ITEMS, BATCH_WIDTH = 1000, 5000, 1024
Sets = NDArray[np.float32]


def unit(x: NDArray[Any]) -> Sets:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def make(items: int, queries: int, width: int, spectrum: str) -> tuple[Sets, Sets]:
    """Items, and queries that are noisy copies of some of them."""
    rng = np.random.default_rng(0)
    if spectrum == "flat":
        every = unit(rng.standard_normal((items + queries, K, width), dtype=np.float32))
        return every[:items], every[items:]
    weights = (np.arange(1, width + 1) ** -0.5).astype(np.float32)
    topics = rng.standard_normal((TOPICS, width), dtype=np.float32)
    centres = topics[rng.integers(0, TOPICS, items)] + rng.standard_normal((items, width), dtype=np.float32)
    vectors = unit((centres[:, None] + 0.8 * rng.standard_normal((items, K, width), dtype=np.float32)) * weights)
    noise = unit(rng.standard_normal((queries, K, width), dtype=np.float32) * weights)
    return vectors, unit(vectors[rng.integers(0, items, queries)] + 0.6 * noise)


def single_scan(vectors: Sets) -> tuple[str, Callable[[Sets], object]]:
    """The exact best of single vectors, one for each item."""
    means = unit(vectors.mean(1))
    try:
        import faiss
    except ImportError:
        tensor = torch.from_numpy(means)
        return "torch", lambda query: (tensor @ torch.from_numpy(query[0])).topk(TOP)
    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(means.shape[1])
    index.add(means)
    return "faiss", lambda query: index.search(query[:1], TOP)


def compare(runs: dict[str, Callable[[Sets], object]], queries: Sets) -> dict[str, list[float]]:
    """Milliseconds of each run for each query; the runs alternate, so that a disturbance hits all."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(queries[0])
    for query in queries:
        for name, run in runs.items():
            start = time.process_time()
            run(query)
            taken[name].append(1e3 * (time.process_time() - start))
    return taken


def measure_single(items: int, spectrum: str) -> dict[str, Any]:
    vectors, queries = make(items, QUERIES, WIDTH, spectrum)
    start = time.process_time()
    engine = Engine.build(vectors, SIMILARITY)
    build_seconds = time.process_time() - start
    part, tensor = similarity.build(**SIMILARITY), torch.from_numpy(vectors)
    scanner, scan = single_scan(vectors)
    with torch.no_grad():
        taken = compare(
            {
                "certified": lambda query: engine.search(query, TOP),
                "brute": lambda query: engine.search(query, TOP, brute=True),
                "torch": lambda query: part.scores(torch.from_numpy(query)[None], tensor)[0].topk(TOP),
                "single": scan,
            },
            queries,
        )
    same = scored = 0
    for query in queries:
        mine, plain = engine.search(query, TOP), engine.search(query, TOP, brute=True)
        same += bool((mine.positions == plain.positions).all() and (mine.scores == plain.scores).all())
        scored += mine.scored
    median = {name: float(np.median(ms)) for name, ms in taken.items()}
    sketch_bytes = sum(array.nbytes for name, array in engine.state()[1].items() if name != "rotation")
    return {
        "items": items,
        "spectrum": spectrum,
        "plan": engine.plan.to_json(),
        "p50_ms": median,
        "p99_ms": {name: float(np.percentile(ms, 99)) for name, ms in taken.items()},
        "single_scan_by": scanner,
        "speedup_over_brute": median["brute"] / median["certified"],
        "speedup_over_torch": median["torch"] / median["certified"],
        "cost_in_single_scans": median["certified"] / median["single"],
        "identical_to_brute": same / len(queries),
        "scored_share": scored / len(queries) / items,
        "bytes_per_item": {"vectors": vectors.nbytes / items, "sketches": sketch_bytes / items},
        "build_seconds": build_seconds,
    }


def measure_batch() -> dict[str, Any]:
    texts, images = make(BATCH_ITEMS, BATCH_QUERIES, BATCH_WIDTH, "decaying")
    part = similarity.build(**SIMILARITY)
    found: dict[str, Any] = {"images": BATCH_QUERIES, "texts": BATCH_ITEMS, "width": BATCH_WIDTH}
    for direction, queries, items in (("image_to_text", images, texts), ("text_to_image", texts, images)):
        engine = Engine.build(items, SIMILARITY)
        a, b = torch.from_numpy(queries), torch.from_numpy(items)
        times: dict[str, list[float]] = {"ours": [], "torch": []}
        agree = 0.0
        for _ in range(3):
            start = time.process_time()
            hits = engine.search_batch(queries, TOP)
            times["ours"].append(time.process_time() - start)
            start = time.process_time()
            with torch.no_grad():
                best = part.scores(a, b).topk(TOP).indices.numpy()
            times["torch"].append(time.process_time() - start)
            agree = float((np.stack([hit.positions for hit in hits]) == best).mean())
        seconds = {name: float(np.median(taken)) for name, taken in times.items()}
        found[direction] = {
            "plan": engine.plan.to_json(),
            "seconds": seconds,
            "speedup": seconds["torch"] / seconds["ours"],
            "same_place_as_float32": agree,
        }
    return found


def show_single(rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"One query, sets of {K} × {WIDTH}, one thread; p50 / p99 in ms")
    names = ("certified", "brute", "torch", "single")
    for column in ("items", "spectrum", *names, "over brute", "single scans", "scored", "identical"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['items']:,}",
            row["spectrum"],
            *(f"{row['p50_ms'][name]:.1f} / {row['p99_ms'][name]:.1f}" for name in names),
            f"{row['speedup_over_brute']:.2f}×",
            f"{row['cost_in_single_scans']:.2f}×",
            f"{row['scored_share']:.2%}",
            f"{row['identical_to_brute']:.0%}",
        )
    return table


def show_batch(found: dict[str, Any]) -> Table:
    table = Table(title=f"{found['images']} × {found['texts']} sets of {K} × {found['width']}, the best {TOP}")
    for column in ("", "ours", "torch", "speedup"):
        table.add_column(column, justify="right")
    for direction in ("image_to_text", "text_to_image"):
        row = found[direction]
        seconds = (f"{row['seconds'][name]:.2f} s" for name in ("ours", "torch"))
        table.add_row(direction, *seconds, f"{row['speedup']:.2f}×")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["single", "batch"], help="measure one half and keep the other's last result")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.only and arguments.out.exists() else {}
    results["environment"] = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "native": native.library() is not None,
    }
    console = Console()
    if arguments.only != "batch":
        cases = [(items, spectrum) for items in SIZES for spectrum in ("decaying", "flat")]
        results["single"] = [measure_single(*case) for case in track(cases, console=Console(stderr=True))]
        console.print(show_single(results["single"]))
    if arguments.only != "single":
        results["batch"] = measure_batch()
        console.print(show_batch(results["batch"]))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
