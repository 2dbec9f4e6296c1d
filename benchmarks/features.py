"""What features on disk cost: extracting them, the memory it takes, and reading them to train.

Extraction with EfficientNet-Lite0 is compared with a plain loop over the same model, one picture at a time, over the
same pictures, in turns, and the fastest turn of each counts: on a busy machine torch's threads wait for one another in
every operation, which slows the plain loop by up to ten times and would flatter us. Processor time is given too: it
hardly depends on what else runs. Peak memory is taken in fresh processes, of a thousand pictures and of four thousand.
Reading shuffled batches is compared with the training step that consumes them: GPO and a projection. Machines are
noisy: only the ratios mean something.

    python benchmarks/features.py PICTURES                 # all of it; PICTURES is a folder with a thousand or more
    python benchmarks/features.py PICTURES --only speed    # or memory, or reading
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import polysem
import polysem.encoders
from polysem.data import Collection, Item, Media, load_image
from polysem.data.images import is_image
from polysem.data.store import FeatureManifest, FeatureStore, StoreEntry, StoreWriter
from polysem.encoders.extraction import extract

RESULTS = Path(__file__).parent / "results" / "features.json"
MODEL = "efficientnet-lite0"
ROUNDS, PER_ROUND = 12, 64
FEW, MANY = 1000, 4000
BATCH, TOKENS, WIDTH, DIM = 128, 49, 1280, 1024
STORED = 4096  # 514 MB in float16


def pictures(folder: Path, count: int) -> Collection:
    """The first `count` pictures; where there are fewer, they come again under other ids."""
    names = sorted(path.name for path in folder.iterdir() if is_image(path))
    if not names:
        raise SystemExit(f"{folder} holds no pictures")
    items = [Item(f"{place}", Media(folder, names[place % len(names)])) for place in range(count)]
    return Collection("benchmark", "image", items)


def encoder() -> Any:
    return polysem.encoders.build("grid", model=MODEL).eval()


# ------------------------------------------------------------------------------------------------ speed


def plain_loop(collection: Collection, model: Any) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model(model.preprocess(load_image(item.media.path))[None]).values[0].half() for item in collection]


def measure_speed(folder: Path) -> dict[str, Any]:
    model, threads = encoder(), torch.get_num_threads()
    everything = pictures(folder, (ROUNDS + 1) * PER_ROUND)
    seconds: dict[str, list[float]] = {"plain": [], "plain_one_thread": [], "ours": []}
    processor: dict[str, list[float]] = {way: [] for way in seconds}
    difference = 0.0
    with Progress(console=Console(stderr=True)) as progress, tempfile.TemporaryDirectory() as scratch:
        task = progress.add_task("speed", total=3 * (ROUNDS + 1))

        def timed(way: str, run: Callable[[], Any]) -> Any:
            start, busy = time.perf_counter(), time.process_time()
            result = run()
            seconds[way].append(time.perf_counter() - start)
            processor[way].append(time.process_time() - busy)
            progress.advance(task)
            return result

        for turn in range(ROUNDS + 1):
            share = everything.where(range(turn * PER_ROUND, (turn + 1) * PER_ROUND))
            plain = timed("plain", lambda share=share: plain_loop(share, model))
            torch.set_num_threads(1)
            timed("plain_one_thread", lambda share=share: plain_loop(share, model))
            torch.set_num_threads(threads)
            out = Path(scratch) / f"{turn}"
            store = timed("ours", lambda share=share, out=out: extract(share, model, out))
            gaps = (np.abs(store[item.id] - values.numpy()).max() for item, values in zip(share, plain, strict=True))
            difference = max(difference, float(max(gaps)))
    # The first turn warms up caches and libraries.
    taken = {way: found[1:] for way, found in seconds.items()}
    fastest = {way: min(found) for way, found in taken.items()}
    paired = [plain / ours for plain, ours in zip(taken["plain"], taken["ours"], strict=True)]
    return {
        "model": MODEL,
        "pictures_a_round": PER_ROUND,
        "rounds": ROUNDS,
        **{f"{way}_images_per_second": PER_ROUND / best for way, best in fastest.items()},
        "speedup": fastest["plain"] / fastest["ours"],
        "speedup_over_one_thread": fastest["plain_one_thread"] / fastest["ours"],
        "median_of_paired_speedups": statistics.median(paired),
        "seconds": taken,
        "processor_seconds": {way: statistics.median(found[1:]) for way, found in processor.items()},
        "largest_difference": difference,
    }


# ------------------------------------------------------------------------------------------------ memory


def high_water_mb() -> float:
    """The most memory this process has held."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def report_peak(folder: Path, count: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        store = extract(pictures(folder, count), encoder(), Path(scratch) / "store")
        print(json.dumps({"peak_mb": high_water_mb(), "items": len(store), "stored_mb": store.nbytes / 2**20}))


def measure_memory(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("memory", total=2)
        for name, count in (("few", FEW), ("many", MANY)):
            command = [sys.executable, __file__, str(folder), "--peak", str(count)]
            found[name] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            progress.advance(task)
    found["growth"] = found["many"]["peak_mb"] / found["few"]["peak_mb"]
    return found


# ------------------------------------------------------------------------------------------------ reading


def fill(folder: Path) -> FeatureStore:
    draw = np.random.default_rng(0)
    manifest = FeatureManifest("random", "none", WIDTH, "float16")
    with StoreWriter(folder, manifest, shard_bytes=2**27) as writer:
        for first in range(0, STORED, BATCH):
            values = draw.standard_normal((BATCH, TOKENS, WIDTH), np.float32)
            writer.add(StoreEntry(f"{first + row}", values[row]) for row in range(BATCH))
            writer.commit()
    return FeatureStore.open(folder)


def training_step() -> Callable[[polysem.LocalFeatures], None]:
    torch.manual_seed(0)
    project = torch.nn.Linear(WIDTH, DIM)
    pooling = polysem.pooling.build("gpo", dim=DIM)
    objective = polysem.objectives.build("triplet", mining="hardest")
    texts = torch.nn.functional.normalize(torch.randn(BATCH, DIM), dim=-1)
    weights = [*project.parameters(), *pooling.parameters()]
    optimiser = torch.optim.AdamW(weights, fused=True)
    positives = torch.eye(BATCH, dtype=torch.bool)

    def step(batch: polysem.LocalFeatures) -> None:
        pooled = pooling(polysem.LocalFeatures(project(batch.values), batch.mask))
        objective(torch.nn.functional.normalize(pooled, dim=-1) @ texts.T, positives).total.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def forget_cached(folder: Path) -> None:
    """Have the system drop what it keeps of the shards in memory, so that reading goes to the disk."""
    for path in folder.glob("shard-*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def report_reading(folder: Path) -> None:
    """Read an epoch in shuffled order, with a training step after every fourth batch, and print what each took."""
    store, step = FeatureStore.open(folder), training_step()
    order = np.random.default_rng(1).permutation(len(store)).reshape(-1, BATCH)
    for places in order[:3]:
        step(store.batch(places))
    before = high_water_mb()
    forget_cached(folder)
    reading: list[float] = []
    training: list[float] = []
    for turn, places in enumerate(order):
        start = time.perf_counter()
        batch = store.batch(places)
        reading.append(time.perf_counter() - start)
        if turn % 4 == 0:
            start = time.perf_counter()
            step(batch)
            training.append(time.perf_counter() - start)
    print(
        json.dumps(
            {
                "stored_mb": store.nbytes / 2**20,
                "batch": [BATCH, TOKENS, WIDTH],
                "read_seconds": statistics.median(reading),
                "slowest_read_seconds": max(reading),
                "step_seconds": statistics.median(training),
                "fastest_step_seconds": min(training),
                "ratio": statistics.median(training) / statistics.median(reading),
                "worst_ratio": min(training) / max(reading),
                "read_mb_per_second": store.nbytes / 2**20 / sum(reading),
                "memory_added_mb": high_water_mb() - before,
            }
        )
    )


def measure_reading(folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        fill(Path(scratch) / "store")
        command = [sys.executable, __file__, str(folder), "--read", str(Path(scratch) / "store")]
        found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


# ------------------------------------------------------------------------------------------------ the table


def show(results: dict[str, Any]) -> Table:
    table = Table("", "ours", "compared with", "ratio", title="Features on disk")
    if "speed" in results:
        found = results["speed"]
        ours = f"{found['ours_images_per_second']:.1f} images/s"
        plain, alone = found["plain_images_per_second"], found["plain_one_thread_images_per_second"]
        table.add_row("extraction", ours, f"plain loop: {plain:.1f} images/s", f"{found['speedup']:.2f}×")
        ratio = f"{found['speedup_over_one_thread']:.2f}×"
        table.add_row("", "", f"plain loop, one torch thread: {alone:.1f} images/s", ratio)
        table.add_row("", "", "largest difference of a feature", f"{found['largest_difference']:.1e}")
    if "memory" in results:
        found = results["memory"]
        many, few = found["many"], found["few"]
        ours = f"{many['items']:,} pictures: {many['peak_mb']:.0f} MB"
        table.add_row("peak memory", ours, f"{few['items']:,}: {few['peak_mb']:.0f} MB", f"{found['growth']:.2f}×")
    if "reading" in results:
        found = results["reading"]
        ours = f"{1000 * found['read_seconds']:.1f} ms a batch"
        step = f"training step: {1000 * found['step_seconds']:.0f} ms"
        table.add_row("shuffled reading", ours, step, f"{found['ratio']:.1f}×")
        added = f"{found['memory_added_mb']:.0f} MB more"
        table.add_row("memory of an epoch", added, f"stored: {found['stored_mb']:.0f} MB", "")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, help="a folder of pictures")
    parser.add_argument("--only", choices=["speed", "memory", "reading"], help="and keep the others' last results")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        report_peak(arguments.pictures, arguments.peak)
        return
    if arguments.read:
        report_reading(arguments.read)
        return
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.only and arguments.out.exists() else {}
    results["environment"] = {
        "torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()
    }  # fmt: skip
    for name, measure in (("speed", measure_speed), ("memory", measure_memory), ("reading", measure_reading)):
        if arguments.only in (None, name):
            results[name] = measure(arguments.pictures)
    Console().print(show(results))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
