"""What a model of photographs costs: photographs indexed per second, and a query from words to results.

    python benchmarks/photo_speed.py PICTURES [--model polysem/photo-small] [--items 20000]
    python benchmarks/photo_speed.py PICTURES --recipe photo-base

PICTURES is a folder of photographs. With --recipe the model is built but not trained, which takes as long. Indexing is
timed from the first photograph to the last commit, without and with loading the model, beside the bare forward pass of
one thread in the same run. For the queries the index is grown to --items by neighbours of its own vectors. Times are of
this machine; compare the ratios. Processor time hardly depends on what else runs: cores / (processor seconds a photo)
is what a quiet machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from polysem import load
from polysem.data import open_collection
from polysem.encoders import PixelEncoder
from polysem.recipes import load as load_recipe
from polysem.search import Index
from polysem.search.store import Entry, VectorBatch
from polysem.training.build import build_model

RESULTS = Path(__file__).parent / "results" / "photo-speed.json"
QUERIES = (
    "children playing in the snow",
    "a dog jumps over a fence",
    "two people at a table",
    "a red car in the street",
)
ROUNDS = 25


def one_thread(model: object, paths: list[Path]) -> float:
    """Pictures per second of the encoder alone."""
    encoder: PixelEncoder = model.image.encoder  # type: ignore[attr-defined]
    pixels = torch.stack([encoder.read(path) for path in paths])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        encoder(pixels[:4])
        began = time.perf_counter()
        for part in pixels.split(4):
            encoder(part)
    torch.set_num_threads(threads)
    return len(paths) / (time.perf_counter() - began)


def grown(vectors: np.ndarray, items: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    rows = vectors[generator.integers(len(vectors), size=items)]
    rows = rows + generator.normal(scale=0.02, size=rows.shape).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--model", default="polysem/photo-small")
    parser.add_argument("--recipe", help="measure an untrained model of this recipe")
    parser.add_argument("--limit", type=int, help="index the first so many photographs of the folder")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--items", type=int, default=20_000)
    given = parser.parse_args()

    collection = open_collection(given.pictures)
    if given.limit is not None:
        collection = collection.where(range(given.limit))
    began = time.perf_counter()
    model = load(given.model) if given.recipe is None else build_model(load_recipe(given.recipe), collection)
    loading = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        began, busy = time.perf_counter(), time.process_time()
        with Index.create(Path(folder) / "pictures", model) as index:
            index.add(collection)
        indexing, busy = time.perf_counter() - began, time.process_time() - busy
        paths = [item.media.path for item in list(collection)[:32]]
        alone = one_thread(model, paths)
        sets = model.encode_images([item.media.path for item in list(collection)[:100]]).numpy()
        with Index.create(Path(folder) / "grown", model) as index:
            names = [Entry(f"{number}.jpg") for number in range(given.items)]
            index.add(VectorBatch("image", names, grown(sets, given.items)))
            taken = []
            for number in range(ROUNDS * len(QUERIES)):
                began = time.perf_counter()
                index.search(QUERIES[number % len(QUERIES)], k=10)
                taken.append(1000 * (time.perf_counter() - began))
    taken = sorted(taken[len(QUERIES) :])
    cores = len(os.sched_getaffinity(0))
    found = {
        "model": given.model if given.recipe is None else f"untrained {given.recipe}",
        "photos": len(collection),
        "photos_per_second": len(collection) / indexing,
        "photos_per_second_with_loading": len(collection) / (indexing + loading),
        "processor_seconds_a_photo": busy / len(collection),
        "photos_per_second_by_processor_time": cores * len(collection) / busy,
        "encoder_on_one_thread": alone,
        "ratio_to_one_thread": len(collection) / indexing / alone,
        "load_average": os.getloadavg()[0],
        "items": given.items,
        "query_ms": {"median": statistics.median(taken), "p99": taken[int(0.99 * len(taken))]},
        "machine": {"cores": cores, "python": platform.python_version(), "torch": torch.__version__},
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
