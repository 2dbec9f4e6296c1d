"""A set of vectors or one? Emoji scenes, whose captions name different parts of a picture: docs/methods/sets.md.

Three rows of one recipe, `small-sets`: the set of eight image vectors, its twin with one vector of the same width, and
a single vector of as many bytes as the set. Each gets the same search: rate, dropout of the image side and epochs, one
after the other, each at the best values so far by RSUM on val. It is then trained with every seed; the figures are of
test, which chooses nothing. The commands of polysem that do the same are printed. Stopped at any moment, the same
command goes on.

    python benchmarks/emoji_sets.py --out runs/emoji-sets
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

import emoji_sets_page as page
import numpy as np
from scipy.stats import norm, t

from polysem import atomic_write, recipes
from polysem.data import open_collection
from polysem.data.collection import Collection
from polysem.evaluation import Evaluation, evaluate
from polysem.evaluation.reports import significance
from polysem.evaluation.result import PerQuery, flatten_metrics
from polysem.models import load
from polysem.synthetic.scenes.make import IMAGES, LIST
from polysem.training import train
from polysem.training.run_folder import read_run

RESULTS = Path(__file__).parent / "results" / "emoji-sets.json"
PAGE = Path(__file__).parent.parent / "docs" / "methods" / "sets.md"
RECIPE = "small-sets"
SET = "set"
COMMON = ("training.validate_every=8",)
SEARCH = {
    "optimiser.lr": (4e-3, 8e-3),
    "image.sets.dropout": (0.2, 0.4),
    "training.epochs": (16, 32),
}
"""The first values are where the search begins."""
SEEDS = (0, 1, 2)
SCENES = 5000
LEARNED = 1000
"""Scenes of train to learn from: all val and test scenes make galleries large enough for narrow intervals."""
METRICS = {
    "pairs": ("rsum", "i2t.map_at_r", "i2t.r_precision", *significance.RSUM),
    "parts": ("nouns.map", "nouns.precision10", "phrases.map", "phrases.precision10"),
}
LEVEL = 0.95

Evaluations = dict[str, list[dict[str, Evaluation]]]
"""By row, seed by seed, by protocol."""


def list_rows() -> dict[str, list[str]]:
    """What each row changes of the recipe."""
    recipe = recipes.load(RECIPE)
    one = ["image.sets.k=1"]
    return {SET: [], "single": one, "single, equal bytes": [*one, f"dim={recipe.image.sets['k'] * int(recipe.dim)}"]}


def run_command(arguments: Sequence[object]) -> None:
    """A command of polysem, in a process of its own."""
    command = ["polysem", *map(str, arguments)]
    print("$", shlex.join(command), flush=True)
    done = subprocess.run([str(Path(sys.executable).with_name("polysem")), *command[1:]], stdout=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"It ended with {done.returncode}. The same command goes on from there.")


def make_data(out: Path, scenes: int, learned: int) -> dict[str, Path]:
    """The scenes, and features of their pictures and captions, once for all runs."""
    recipe, made = recipes.load(RECIPE), out / "made" / f"scenes-{scenes}"
    used = out / f"scenes-{scenes}-{learned}"
    stores = {"features": out / "features" / "images", "text_features": out / "features" / "captions"}
    if not (used / LIST).exists():
        run_command(["data", "make", "emoji-scenes", "--out", made, "--items", scenes])
        for store, side in zip(stores.values(), (recipe.image, recipe.text), strict=True):
            knobs = dict(side.encoder)
            name = knobs.pop("name")
            settings = [f"--set={key}={value}" for key, value in knobs.items()]
            run_command(["features", made, "--encoder", name, *settings, "--out", store])
        take_part(made, used, learned)
    return {"data": used, **stores}


def take_part(made: Path, used: Path, learned: int) -> None:
    """The same collection with the first `learned` scenes of train alone."""
    content = json.loads((made / LIST).read_text(encoding="utf-8"))
    train = [each["filename"] for each in content["images"] if each["split"] == "train"]
    left_out = set(train[learned:])
    content["images"] = [each for each in content["images"] if each["filename"] not in left_out]
    used.mkdir(parents=True, exist_ok=True)
    if not (used / IMAGES).exists():
        (used / IMAGES).symlink_to((made / IMAGES).resolve())
    atomic_write.write_text(used / LIST, json.dumps(content) + "\n")


def name_folder(row: str) -> str:
    return row.replace(",", "").replace(" ", "-")


def train_one(
    row: str, settings: Sequence[str], values: Mapping[str, Any], seed: int, given: Mapping[str, Path], out: Path
) -> Path:
    """The folder of a run; one that is finished is left as it is."""
    changes = [*COMMON, *settings, *(f"{key}={value}" for key, value in values.items()), f"training.seed={seed}"]
    folder = out / "runs" / name_folder(row) / f"{','.join(f'{value:g}' for value in values.values())}-seed-{seed}"
    stores = {name: given[name] for name in ("features", "text_features")}
    options = [f"--{name.replace('_', '-')}={path}" for name, path in {"data": given["data"], **stores}.items()]
    command = ["polysem", "train", RECIPE, *options, *(f"--set={each}" for each in changes), f"--out={folder}"]
    print("$", shlex.join(command), flush=True)
    train(recipes.load(RECIPE, changes), given["data"], folder, tracker=None, **stores)
    return folder


def search(rows: Mapping[str, Sequence[str]], given: Mapping[str, Path], out: Path) -> dict[str, list[dict[str, Any]]]:
    """Every trial of every row with the first seed, the best on val first."""
    trials: dict[str, list[dict[str, Any]]] = {row: [] for row in rows}

    def try_values(row: str, values: dict[str, Any]) -> None:
        about = read_run(train_one(row, rows[row], values, SEEDS[0], given, out)) or {}
        trials[row].append({"values": values, "val_rsum": about["best"]["rsum"], "seconds": about["seconds"]})
        print(f"  {row}: RSUM {trials[row][-1]['val_rsum']:.1f} on val", flush=True)
        trials[row].sort(key=lambda trial: -trial["val_rsum"])

    for row in rows:
        try_values(row, {key: values[0] for key, values in SEARCH.items()})
    for key, values in SEARCH.items():
        best = {row: trials[row][0]["values"] for row in rows}
        for value in values[1:]:
            for row in rows:
                try_values(row, {**best[row], key: value})
    return trials


def measure(folder: Path, data: Collection, given: Mapping[str, Path]) -> dict[str, Evaluation]:
    """As `polysem eval FOLDER --data scenes --split test --protocol pairs` and parts."""
    stores = {name: given[name] for name in ("features", "text_features")}
    return {
        protocol: evaluate(folder, data, protocol=protocol, split="test", intervals=False, **stores)
        for protocol in METRICS
    }


def find_difference(a: Sequence[Evaluation], b: Sequence[Evaluation], metric: str) -> dict[str, Any]:
    """How much better a is than b over the same seeds, with an interval that knows of other queries and other seeds.

    The variance of the first kind is that of the paired bootstrap (of images; of nouns for part queries) of the
    difference averaged over the seeds, of the second the spread of the seeds' differences over their number; Student's
    t has the degrees of freedom of Welch and Satterthwaite.
    """
    values = [[flatten_metrics(each.metrics)[metric] for each in side] for side in (a, b)]
    apart = [one - other for one, other in zip(*values, strict=True)]
    queries = {}
    for way, first in a[0].per_query.items():
        names = [name for name in first.values if metric in ("rsum", f"{way}.{name}")]
        gaps = {
            name: np.mean(
                [
                    one.per_query[way].values[name] - two.per_query[way].values[name]
                    for one, two in zip(a, b, strict=True)
                ],
                axis=0,
            )
            for name in names
        }
        queries[way] = PerQuery(gaps, first.clusters)
    intervals = significance.intervals(Evaluation("difference", a[0].stamp, {}, queries), level=LEVEL)
    low, high = intervals[metric]
    of_queries = ((high - low) / (2 * norm.ppf((1 + LEVEL) / 2))) ** 2
    of_seeds = variance(apart) / len(apart) if len(apart) > 1 else 0.0
    clusters = len(np.unique(np.concatenate([each.clusters for each in queries.values()])))
    total, mean = of_queries + of_seeds, fmean(apart)
    half = 0.0
    if total:
        freedom = total**2 / (of_queries**2 / max(1, clusters - 1) + of_seeds**2 / max(1, len(apart) - 1))
        half = float(t.ppf((1 + LEVEL) / 2, freedom) * total**0.5)
    return {"mean": mean, "interval": [mean - half, mean + half], "each": apart}


def summarise(measured: Evaluations) -> tuple[dict[str, Any], dict[str, Any]]:
    """Mean, standard deviation and each seed of every metric of every row; and the set minus each other row."""
    table: dict[str, Any] = {row: {} for row in measured}
    apart: dict[str, Any] = {row: {} for row in measured if row != SET}
    for protocol, metrics in METRICS.items():
        for metric in metrics:
            for row, seeds in measured.items():
                each = [flatten_metrics(one[protocol].metrics)[metric] for one in seeds]
                table[row][metric] = {"mean": fmean(each), "sd": stdev(each) if len(each) > 1 else None, "each": each}
            for row in apart:
                sides = [[one[protocol] for one in measured[name]] for name in (SET, row)]
                apart[row][metric] = find_difference(*sides, metric)
    return table, apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the scenes, features and runs")
    parser.add_argument("--scenes", type=int, default=SCENES)
    parser.add_argument("--learned", type=int, default=LEARNED, help="scenes of train to learn from")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), choices=range(1, len(SEEDS) + 1))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE, help="the page whose tables are written anew")
    given = parser.parse_args()
    rows, places = list_rows(), make_data(given.out, given.scenes, given.learned)
    data = open_collection(places["data"])
    trials = search(rows, places, given.out)
    measured: Evaluations = {}
    facts: dict[str, Any] = {}
    for row, settings in rows.items():
        chosen = trials[row][0]["values"]
        folders = [train_one(row, settings, chosen, seed, places, given.out) for seed in SEEDS[: given.seeds]]
        measured[row] = [measure(folder, data, places) for folder in folders]
        model = load(folders[0])
        facts[row] = {
            "settings": settings,
            "set_sizes": list(model.set_sizes),
            "dim": model.dim,
            "parameters": sum(each.numel() for each in model.parameters() if each.requires_grad),
            "val_rsum": [(read_run(folder) or {})["best"]["rsum"] for folder in folders],
            "seconds": [(read_run(folder) or {})["seconds"] for folder in folders],
        }
    table, apart = summarise(measured)
    entry = {
        "recipe": RECIPE,
        "common": list(COMMON),
        "items": data.splits,
        "search": SEARCH,
        "seeds": list(SEEDS[: given.seeds]),
        "protocols": {name: str(each.stamp) for name, each in measured[SET][0].items()},
        "rows": facts,
        "table": table,
        "set_minus": apart,
        "trials": trials,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
    }
    atomic_write.write_text(given.output, json.dumps(entry, indent=1, ensure_ascii=False) + "\n")
    if given.page.exists():
        page.fill(given.page, entry)
    print("\n".join(page.list_tables(entry)))


if __name__ == "__main__":
    main()
