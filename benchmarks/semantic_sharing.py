"""Does a consistency loss harm? The supplement of label-wise semantic sharing (IJCAI 2021), at small scale.

Four recipes (independent classifiers, DSCMR, sharing with a consistency loss, sharing) are trained on a collection with
labels, each with three seeds; the checkpoint is picked on val, the figures are of test, under the protocol `labels`:
micro-F1 of each side and NDCG@50 both ways. Drawn are figure 1 (classification and retrieval of val, epoch by epoch,
with and without consistency) and figure 2 (failures: super-class and semantic confusion). Runs that are there are not
repeated: stopped at any moment, the same command goes on.

    polysem data make emoji-scenes --out scenes
    python benchmarks/semantic_sharing.py --data scenes --out runs/semantic-sharing

With `--caption-labels 1500` the labels of so many photos are the things that their captions name (`caption_labels.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import caption_labels
import semantic_sharing_figures as figures
import semantic_sharing_page as page
import torch
from rich.console import Console
from rich.table import Table

from polysem import recipes
from polysem.cli.train import TrainingDisplay
from polysem.data import open_collection
from polysem.data.collection import Collection
from polysem.evaluation import evaluate, protocols
from polysem.evaluation.ranking import rank_bidirectional
from polysem.evaluation.score_matrix import EmbeddingScores
from polysem.inspection.diagnose.error_analysis import count_confusions, label_groups
from polysem.inspection.gallery import EmbeddedGallery, open_gallery
from polysem.training import train
from polysem.training.build import build_model
from polysem.training.feature_cache import cache_features
from polysem.training.run_folder import METRICS, read_metrics

RESULTS = Path(__file__).parent / "results" / "semantic_sharing.json"
IMAGES = Path(__file__).parent.parent / "docs" / "images"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks" / "label-wise.md"
RECIPES = {
    "independent": "small-semantic-sharing-independent",
    "DSCMR": "small-dscmr",
    "sharing + consistency": "small-semantic-sharing-consistency",
    "sharing": "small-semantic-sharing",
}
WITH, WITHOUT = "sharing + consistency", "sharing"
COLUMNS = {
    "micro_f1.image": "micro-F1 image",
    "micro_f1.text": "micro-F1 text",
    "i2t.ndcg50": "NDCG@50 image → text",
    "t2i.ndcg50": "NDCG@50 text → image",
}
K = 50
LIMIT = 25 * 60.0
"""Seconds that everything may take on two idle cores."""

Cell = dict[str, Any]
Stores = tuple[Path | None, Path | None]


def measure(name: str, seed: int, data: Collection, stores: Stores, out: Path, settings: Sequence[str]) -> Cell:
    """Train one and measure it on test; what was measured earlier is read."""
    place, file = out / RECIPES[name] / f"seed-{seed}", kept(out, name, seed)
    if file.exists():
        return dict(json.loads(file.read_text(encoding="utf-8")))
    recipe = recipes.load(RECIPES[name], [*settings, f"training.seed={seed}"])
    began, worked = time.monotonic(), time.process_time()
    result = train(
        recipe,
        data,
        place,
        features=stores[0],
        text_features=stores[1],
        tracker=None,
        on_collapse="warn",
        show=TrainingDisplay(),
    )
    protocol = protocols.find("labels").with_options(k=K)
    found = evaluate(
        place, data, protocol=protocol, split="test", features=stores[0], text_features=stores[1], intervals=False
    )
    metrics = found.as_dict()["metrics"]
    cell = {
        "recipe": RECIPES[name],
        "seed": seed,
        "settings": list(settings),
        "figures": {column: metrics[column] for column in COLUMNS},
        "protocol": str(found.stamp),
        "steps": result.steps,
        "best_epoch": (result.best or {})["epoch"] + 1,
        "whole": result.resumed_from == 0,
        "seconds": time.monotonic() - began,
        "processor_seconds": time.process_time() - worked,
        "curves": curves(place),
        "findings": [record["name"] for record in read_metrics(place / METRICS) if record["kind"] == "diagnosis"],
    }
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, file)
    return cell


def kept(out: Path, name: str, seed: int) -> Path:
    """Where a run's figures are."""
    return out / RECIPES[name] / f"seed-{seed}.json"


def curves(run: Path) -> dict[str, list[float]]:
    """Of val, epoch by epoch."""
    found: dict[str, list[float]] = {column: [] for column in COLUMNS}
    for record in read_metrics(run / METRICS):
        if record["kind"] == "validation":
            labels = record["labels"]
            for way in ("i2t", "t2i"):
                found[f"{way}.ndcg{K}"].append(labels[f"ndcg{K}"][way])
            for side in ("image", "text"):
                found[f"micro_f1.{side}"].append(labels["micro_f1"][side])
    return found


def summary(cells: Mapping[str, Sequence[Cell]]) -> dict[str, dict[str, list[float]]]:
    """recipe -> metric -> mean and standard deviation over the seeds."""
    table = {}
    for name, some in cells.items():
        values = {column: [cell["figures"][column] for cell in some] for column in COLUMNS}
        table[name] = {column: [fmean(each), stdev(each) if len(each) > 1 else 0.0] for column, each in values.items()}
    return table


def claim(cells: Mapping[str, Sequence[Cell]]) -> dict[str, dict[str, Any]]:
    """With consistency minus without, seed by seed: both begin with the same weights and see the same batches."""
    found = {}
    for column in COLUMNS:
        apart = [
            one["figures"][column] - other["figures"][column]
            for one, other in zip(cells[WITH], cells[WITHOUT], strict=True)
        ]
        found[column] = {"differences": apart, "mean": fmean(apart), "lower_in": sum(each < 0 for each in apart)}
    return found


def failures(cells: Mapping[str, Sequence[Cell]], data: Collection, stores: Stores, out: Path, groups: dict[str, str]):
    """Wrong first answers of each recipe's first run, by kind; and the gallery of the last recipe, to draw from."""
    table, gallery = {}, None
    for name, some in cells.items():
        run = out / RECIPES[name] / f"seed-{some[0]['seed']}"
        gallery = open_gallery(run, data, split="test", features=stores[0], text_features=stores[1])
        ranked = ranking(gallery)
        for way, one in (("i2t", ranked["i2t"]), ("t2i", ranked["t2i"])):
            counted = count_confusions(one, gallery.items, groups, from_text=way == "t2i")
            swaps = [f"{swap.says} → {swap.shows} ({swap.kind}, {swap.times})" for swap in counted.swaps[:8]]
            queries = len(gallery.items) if way == "i2t" else len(gallery.items.captions)
            table[f"{name}, {way}"] = {
                "queries": queries,
                "wrong": counted.wrong,
                **counted.kinds,
                "swaps": swaps,
            }
    return table, gallery


def ranking(gallery: EmbeddedGallery) -> Any:
    scores = EmbeddingScores(gallery.embeddings.images, gallery.embeddings.texts, gallery.model.similarity)
    ranked, _ = rank_bidirectional(scores, gallery.items.caption_items, keep=10)
    return ranked


def extracted(data: Collection, given: Stores, console: Console) -> Stores:
    """Features of all items, test included, before the clock starts: they are made once, and not by a recipe."""
    recipe = recipes.load(RECIPES[WITHOUT])
    model = build_model(recipe, data.split("train"))
    found = []
    for tower, place, what in ((model.image, given[0], "images"), (model.text, given[1], "captions")):
        said = -1

        def tell(_: str, done: int, total: int, /, what: str = what) -> None:
            nonlocal said
            if total and done < total and 10 * done // total > said:
                said = 10 * done // total
                console.print(f"Features of {what}: {done:,} of {total:,}")

        found.append(cache_features(data, tower.encoder, place, tell).folder)
    return found[0], found[1]


def in_parallel(wanted: Sequence[tuple[str, int]], workers: int) -> None:
    """Each run in a process of its own, so many at a time, which share the cores: on a processor two runs side by side
    are sooner done than one after the other on both cores."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))}
    running: list[subprocess.Popen[bytes]] = []

    def one(cell: tuple[str, int]) -> int:
        command = [sys.executable, __file__, *sys.argv[1:], "--cell", cell[0], str(cell[1])]
        running.append(subprocess.Popen(command, env=environment))
        return running[-1].wait()

    with ThreadPoolExecutor(workers) as pool:
        try:
            failed = [code for code in pool.map(one, wanted) if code]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
    if failed:
        raise SystemExit(f"{len(failed)} of {len(wanted)} runs failed; the same command goes on.")


def show(console: Console, name: str, entry: Mapping[str, Any]) -> None:
    table = Table("", *COLUMNS.values(), title=f"{name}: {len(entry['seeds'])} seeds, {entry['epochs']} epochs, test")
    for recipe, row in entry["table"].items():
        table.add_row(recipe, *(f"{row[column][0]:.1f} ± {row[column][1]:.1f}" for column in COLUMNS))
    console.print(table)
    for column, found in entry["consistency_minus_without"].items():
        each = ", ".join(f"{value:+.1f}" for value in found["differences"])
        console.print(f"consistency − without, {COLUMNS[column]}: {found['mean']:+.2f} ({each})")
    kinds = Table("wrong first answers", "queries", "wrong", *figures.KINDS, title=f"{name}: failures, first seed")
    for row, found in entry["failures"].items():
        kinds.add_row(row, str(found["queries"]), str(found["wrong"]), *(str(found[kind]) for kind in figures.KINDS))
    console.print(kinds)
    total = entry["seconds"]
    console.print(
        f"{total / 60:.1f} min in all with {entry['workers']} at a time, "
        f"{entry['processor_seconds'] / 60:.1f} min of processor time"
    )
    if total > LIMIT:
        console.print(f"More than the {LIMIT / 60:.0f} minutes aimed at, or the machine was busy.", style="yellow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a collection with labels and the splits train, val and test")
    parser.add_argument(
        "--features", type=Path, help="store of image features, made if absent; by default in the cache"
    )
    parser.add_argument("--text-features", type=Path, help="store of caption features, likewise")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2, help="runs at the same time, which share the cores")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--set", action="append", default=[], help="another setting of all recipes")
    parser.add_argument("--caption-labels", type=int, metavar="N", help="label N items by what their captions name")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder for the figures")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE, help="the page whose tables are written anew")
    given = parser.parse_args()
    console, data = Console(), open_collection(given.data)
    groups = label_groups(data)
    if given.caption_labels is not None:
        data, groups = caption_labels.labelled(data, given.caption_labels), dict(caption_labels.GROUPS)
    settings = [f"training.epochs={given.epochs}", *given.set]
    wanted = [(name, seed) for seed in range(given.seeds) for name in RECIPES]
    stores = extracted(data, (given.features, given.text_features), console)
    if given.cell is not None:
        measure(given.cell[0], int(given.cell[1]), data, stores, given.out, settings)
        return
    if given.workers > 1:
        in_parallel([cell for cell in wanted if not kept(given.out, *cell).exists()], given.workers)
    cells: dict[str, list[Cell]] = {name: [] for name in RECIPES}
    for name, seed in wanted:
        cells[name].append(measure(name, seed, data, stores, given.out, settings))
    counted, gallery = failures(cells, data, stores, given.out, groups)
    every = [cell for some in cells.values() for cell in some]
    entry = {
        "items": data.splits,
        "labels": len(data.label_names),
        "labels_per_item": fmean(len(item.labels) for item in data),
        "label_source": "captions" if given.caption_labels is not None else "the collection",
        "seeds": list(range(given.seeds)),
        "epochs": given.epochs,
        "settings": settings,
        "protocol": every[0]["protocol"],
        "table": summary(cells),
        "consistency_minus_without": claim(cells),
        "failures": counted,
        "workers": given.workers,
        "seconds": sum(cell["seconds"] for cell in every) / given.workers,
        "processor_seconds": sum(cell["processor_seconds"] for cell in every),
        "all_runs_whole": all(cell["whole"] for cell in every),
        "machine": {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "python": platform.python_version()},
        "runs": cells,
    }
    results = json.loads(given.output.read_text(encoding="utf-8")) if given.output.exists() else {}
    results[data.name] = entry
    given.output.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    given.images.mkdir(parents=True, exist_ok=True)
    slug = data.name.replace(" ", "-")
    pairs = {"with consistency": cells[WITH], "without": cells[WITHOUT]}
    figures.epochs(given.images / f"label-wise-epochs-{slug}.png", data.name, pairs, COLUMNS)
    if gallery is not None:
        # Photos are other people's: a picture of them stays with the runs.
        place = given.out if given.caption_labels is not None else given.images
        figures.failures(place / f"label-wise-failures-{slug}.png", gallery, ranking(gallery), groups)
    if given.page.exists():
        page.fill(given.page, data.name, entry, COLUMNS)
    show(console, data.name, entry)


if __name__ == "__main__":
    main()
