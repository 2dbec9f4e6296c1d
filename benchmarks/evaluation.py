"""What an evaluation costs beyond the scores themselves, and how much memory it takes.

Single vectors: both directions, every metric, the whole gallery and five folds, against the matrix product alone and
against the released codes' loops, which sort every row and column. Sets: against a loop over the queries that evaluates
the formula and sorts, as DivE's released evaluation does. All ways must find the same recalls.

A round runs every way once, so that a disturbance hits all; medians of processor time are compared. Machines are noisy:
only the ratios mean something. Memory is the most that a fresh process held.

    python benchmarks/evaluation.py                  # everything, about ten minutes
    python benchmarks/evaluation.py --only single    # one part; the others keep their last result
    python benchmarks/evaluation.py --quick          # tiny galleries: does it run?
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table
from torch import Tensor

from polysem import similarity
from polysem.data.collection import Collection, Item, Media
from polysem.evaluation.cost import Timing, median_times
from polysem.evaluation.protocols import ModelScores
from polysem.evaluation.protocols.pairs import PairsProtocol
from polysem.evaluation.score_matrix import EmbeddingScores
from polysem.progress import Progress, ignore

RESULTS = Path(__file__).parent / "results" / "evaluation.json"
PARTS = ("single", "sets", "memory")
CUTS = (1, 5, 10)
ALPHA = 16.0
GEMM_TILES = ((1000, 1000), (1000, 5000), (5000, 1000), (5000, 25_000))
"""Images and texts of a block of the bare matrix product: the cheapest counts."""
WANTED = {"cost_of_gemm": 1.4, "speedup_of_sets": 6.0, "peak_mb": 2048.0}

Recalls = dict[str, list[float]]


@dataclass(frozen=True)
class Sizes:
    images: int
    captions: int = 5
    set_size: int = 1
    dim: int = 1024
    folds: int = 1


SIZES = {
    "single": Sizes(5000, folds=5),
    "sets": Sizes(1000, set_size=4),
    "memory": Sizes(5000, set_size=4, folds=5),
}
SMALL = {
    "single": Sizes(60, dim=16, folds=5),
    "sets": Sizes(30, set_size=4, dim=16),
    "memory": Sizes(60, set_size=4, dim=16, folds=5),
}


def embeddings(sizes: Sizes, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors; a caption lies so near its image that some are found at once and some are not."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sizes.set_size, sizes.dim)
    images = torch.randn(sizes.images, *shape, generator=generator)
    texts = torch.randn(sizes.images * sizes.captions, *shape, generator=generator)
    # As hard whatever the sizes: more numbers to go by need more noise.
    texts.mul_(8.0 * (sizes.set_size * sizes.dim / 1024) ** 0.5).add_(images.repeat_interleave(sizes.captions, 0))
    return tuple(each.div_(each.norm(dim=-1, keepdim=True)) for each in (images, texts))  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------ ours


def ours(images: Tensor, texts: Tensor, sizes: Sizes, gallery: Collection) -> Recalls:
    name = {"name": "cosine"} if sizes.set_size == 1 else {"name": "smooth_chamfer", "alpha": ALPHA}
    protocol = PairsProtocol("benchmark", "", captions=sizes.captions, folds=sizes.folds, whole=True)
    subject = ModelScores("benchmark", EmbeddingScores(images, texts, similarity.build(**name)))
    found = protocol.measure(subject, gallery, "test").metrics
    whole = found.get("whole", found)
    return {way: [whole[way][f"r{cut}"] for cut in CUTS] for way in ("i2t", "t2i")}


def collection(sizes: Sizes) -> Collection:
    captions = [f"caption {number}" for number in range(sizes.captions)]
    items = [Item(str(place), Media(Path(), "none.npy"), tuple(captions)) for place in range(sizes.images)]
    return Collection("benchmark", "features", items)


# ------------------------------------------------------------------------------------------------ the others


def gemm(images: Tensor, texts: Tensor, rows: int, columns: int) -> None:
    """Every score once, into memory that is there already."""
    memory = torch.empty(min(rows, len(images)) * min(columns, len(texts)))
    for a in images[:, 0].split(rows):
        for b in texts[:, 0].split(columns):
            torch.mm(a, b.t(), out=memory[: len(a) * len(b)].view(len(a), len(b)))


def sorting_loops(scores: np.ndarray, captions: int) -> Recalls:
    """The ranks of one gallery as released codes find them: sort all answers of a query, look for the right ones."""
    i2t = np.zeros(len(scores))
    for image, row in enumerate(scores):
        order = np.argsort(row)[::-1]
        i2t[image] = min(np.where(order == captions * image + number)[0][0] for number in range(captions))
    columns = scores.T
    t2i = np.zeros(len(columns))
    for text, column in enumerate(columns):
        order = np.argsort(column)[::-1]
        t2i[text] = np.where(order == text // captions)[0][0]
    return recalls(i2t, t2i)


def released_single(images: Tensor, texts: Tensor, sizes: Sizes) -> Recalls:
    scores = (images[:, 0] @ texts[:, 0].t()).numpy()
    size = sizes.images // sizes.folds
    for fold in range(sizes.folds if sizes.folds > 1 else 0):
        own = slice(fold * size, (fold + 1) * size)
        sorting_loops(scores[own, own.start * sizes.captions : own.stop * sizes.captions], sizes.captions)
    return sorting_loops(scores, sizes.captions)


def released_sets(images: Tensor, texts: Tensor, sizes: Sizes) -> Recalls:
    """Query by query: the formula against the whole gallery, then a sort."""
    i2t, t2i = np.zeros(len(images)), np.zeros(len(texts))
    for place, image in enumerate(images):
        order = np.argsort(smooth_chamfer(image, texts).numpy())[::-1]
        i2t[place] = np.where(order // sizes.captions == place)[0][0]
    for place, text in enumerate(texts):
        order = np.argsort(smooth_chamfer(text, images).numpy())[::-1]
        t2i[place] = np.where(order == place // sizes.captions)[0][0]
    return recalls(i2t, t2i)


def smooth_chamfer(query: Tensor, gallery: Tensor) -> Tensor:
    """(K, D), (G, L, D) -> (G,): the printed formula."""
    c = ALPHA * (gallery.flatten(0, 1) @ query.t()).view(*gallery.shape[:2], len(query))
    return (c.logsumexp(1).mean(1) + c.logsumexp(2).mean(1)) / (2 * ALPHA)


def recalls(i2t: np.ndarray, t2i: np.ndarray) -> Recalls:
    return {way: [100.0 * float((r < cut).mean()) for cut in CUTS] for way, r in (("i2t", i2t), ("t2i", t2i))}


def check(found: Recalls, expected: Recalls) -> None:
    """Rounding may swap neighbours: a query in a thousand."""
    for way in expected:
        if not np.allclose(found[way], expected[way], atol=0.1):
            raise SystemExit(f"the ways to evaluate differ: {way} {found[way]} and {expected[way]}; nothing to compare")


# ------------------------------------------------------------------------------------------------ measuring


def measure_single(sizes: Sizes, rounds: int, watch: Progress = ignore) -> dict[str, Any]:
    images, texts = embeddings(sizes)
    gallery, found = collection(sizes), {}

    def run(way: str, task: Callable[[], Recalls]) -> None:
        found[way] = task()

    tasks: dict[str, Callable[[], object]] = {
        f"gemm in {rows} × {columns}": partial(gemm, images, texts, rows, columns) for rows, columns in GEMM_TILES
    }
    tasks["ours"] = partial(run, "ours", partial(ours, images, texts, sizes, gallery))
    tasks["released"] = partial(run, "released", partial(released_single, images, texts, sizes))
    times = median_times(tasks, rounds, watch)
    check(found["ours"], found["released"])
    cheapest = min((times[name] for name in tasks if name.startswith("gemm")), key=lambda taken: taken.cpu)
    return {
        **asdict(sizes),
        "rounds": rounds,
        "seconds": {name: asdict(taken) for name, taken in times.items()},
        "gemm_cpu": cheapest.cpu,
        "ours_cost_of_gemm": times["ours"].cpu / cheapest.cpu,
        "released_cost_of_gemm": times["released"].cpu / cheapest.cpu,
        "wanted": WANTED["cost_of_gemm"],
        "recalls": found,
    }


def measure_sets(sizes: Sizes, rounds: int, watch: Progress = ignore) -> dict[str, Any]:
    images, texts = embeddings(sizes)
    gallery, found = collection(sizes), {}

    def run(way: str, task: Callable[[], Recalls]) -> None:
        found[way] = task()

    ways = {
        "ours": partial(ours, images, texts, sizes, gallery),
        "released": partial(released_sets, images, texts, sizes),
    }
    times: dict[str, Timing] = median_times({way: partial(run, way, task) for way, task in ways.items()}, rounds, watch)
    check(found["ours"], found["released"])
    return {
        **asdict(sizes),
        "rounds": rounds,
        "seconds": {name: asdict(taken) for name, taken in times.items()},
        "speedup_in_processor_time": times["released"].cpu / times["ours"].cpu,
        "wanted": WANTED["speedup_of_sets"],
        "recalls": found,
    }


def high_water_mb() -> float:
    """The most memory this process has held. Linux carries getrusage's figure over from the parent, /proc's not."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def report_peak(sizes: Sizes) -> None:
    images, texts = embeddings(sizes)
    before = high_water_mb()
    ours(images, texts, sizes, collection(sizes))
    print(json.dumps({"embeddings_mb": before, "peak_mb": high_water_mb()}))


def measure_memory(sizes: Sizes, quick: bool) -> dict[str, Any]:
    script = [
        sys.executable,
        __file__,
        "--peak",
        f"--threads={torch.get_num_threads()}",
        *(["--quick"] if quick else []),
    ]
    found = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    return {**asdict(sizes), **found, "wanted": WANTED["peak_mb"]}


# ------------------------------------------------------------------------------------------------ showing


def gallery_of(row: dict[str, Any]) -> str:
    return f"{row['images']} × {row['images'] * row['captions']}, K = {row['set_size']}, D = {row['dim']}"


def show(results: dict[str, Any]) -> Table:
    table = Table(title="processor time and memory of a whole evaluation")
    for column in ("", "gallery", "released", "ours", "wanted"):
        table.add_column(column, justify="right" if column in ("released", "ours", "wanted") else "left")
    if row := results.get("single"):
        table.add_row(
            "times the cost of the matrix product",
            gallery_of(row),
            f"{row['released_cost_of_gemm']:.2f}×",
            f"{row['ours_cost_of_gemm']:.2f}×",
            f"≤ {row['wanted']}×",
        )
    if row := results.get("sets"):
        taken = row["seconds"]
        table.add_row(
            f"sets: {row['speedup_in_processor_time']:.1f}× less",
            gallery_of(row),
            f"{taken['released']['cpu']:.1f} s",
            f"{taken['ours']['cpu']:.1f} s",
            f"≥ {row['wanted']}× less",
        )
    if row := results.get("memory"):
        table.add_row(
            f"peak memory ({row['embeddings_mb']:.0f} MB before)",
            gallery_of(row),
            "",
            f"{row['peak_mb']:.0f} MB",
            f"≤ {row['wanted']:.0f} MB",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part; the others keep their last result")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts; one more warms up")
    parser.add_argument("--threads", type=int, default=1, help="of torch; with one, nobody waits for anybody")
    parser.add_argument("--quick", action="store_true", help="tiny galleries: a test, not a measurement")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = SMALL if arguments.quick else SIZES
    if arguments.peak:
        report_peak(sizes["memory"])
        return
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.only and arguments.out.exists() else {}
    results["environment"] = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "load_before": round(os.getloadavg()[0], 1),
    }
    rounds = 1 if arguments.quick else arguments.rounds
    with Bar(console=Console(stderr=True)) as progress:
        for part in PARTS if arguments.only is None else (arguments.only,):
            task = progress.add_task(part, total=None)

            def watch(_: str, done: int, total: int, task: Any = task) -> None:
                progress.update(task, completed=done, total=total)

            if part == "single":
                results[part] = measure_single(sizes[part], rounds, watch)
            elif part == "sets":
                results[part] = measure_sets(sizes[part], rounds, watch)
            else:
                results[part] = measure_memory(sizes[part], arguments.quick)
    Console().print(show(results))
    if not arguments.quick:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
