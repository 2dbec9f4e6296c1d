"""One run of docs/benchmarks/results.md: train a row with a seed, measure its last weights on val, keep its figures."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from results_rows import Plan, Row

from polysem import atomic_write, recipes
from polysem.data.collection import Collection
from polysem.data.store.layout import read_manifest
from polysem.errors import InputError
from polysem.evaluation import Evaluation, evaluate
from polysem.evaluation.embeddings import embed_collection
from polysem.evaluation.score_matrix import EmbeddingScores, Scores
from polysem.models import Model, load
from polysem.recipes import Recipe
from polysem.training import train
from polysem.training.build import build_model
from polysem.training.loop import StoppedError
from polysem.training.run_folder import METRICS, Checkpoints, read_metrics

SPLIT = "val"
FIGURES = ("rsum", *(f"{way}.r{cut}" for way in ("i2t", "t2i") for cut in (1, 5, 10)))
NOT_SELECTED = "no split (weights of the last step)"
BINS = 24
"""Points of a curve of AdOpt's K."""
ENDS = 10
"""Steps at each end of a run whose K is averaged."""

Cell = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What all runs share. features: the first and the second store of image features."""

    plan: Plan
    data: Collection
    features: tuple[Path | None, Path | None]
    text_features: Path | None
    out: Path
    _places: dict[tuple[str, int], Path] = field(default_factory=dict, compare=False)

    def recipe(self, row: Row, seed: int = 0) -> Recipe:
        store = self.features[row.store - 1]
        settings = self.plan.settings(row, None if store is None else encoder_of(store))
        return recipes.load(row.base, [*settings, f"training.seed={seed}"])

    def can_run(self, row: Row) -> bool:
        return row.store == 1 or self.features[1] is not None

    def place(self, row: Row, seed: int) -> Path:
        """Of a run's folder; its figures are beside it. It tells by all that makes a run: two rows may share one."""
        key = (row.name, seed)
        if key not in self._places:
            self._places[key] = self._place(row, seed)
        return self._places[key]

    def _place(self, row: Row, seed: int) -> Path:
        content = self.recipe(row, seed).model_dump(mode="json")
        for key in ("name", "summary", "paper"):
            content.pop(key)
        stores = [self.features[row.store - 1], self.text_features]
        made = [None if store is None else read_manifest(store).fingerprint for store in stores]
        told = json.dumps([content, made, self.data.name, self.data.splits, row.read_as], sort_keys=True)
        return self.out / f"{row.base}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    def cell(self, row: Row, seed: int) -> Cell | None:
        """What a finished run found."""
        try:
            return dict(json.loads(self.place(row, seed).with_suffix(".json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None


@functools.cache
def encoder_of(store: Path) -> str:
    """The encoder that made a store, as a recipe writes it: the larger networks come with other resolutions."""
    made = read_manifest(store).encoder
    told = {key: made[key] for key in ("name", "model", "grid", "image_size", "resize") if made.get(key) is not None}
    return json.dumps({**told, "trainable": "none"})


def run(bench: Bench, row: Row, seed: int) -> Cell:
    """Train and measure, or go on where an earlier call was stopped. What is finished is read."""
    known = bench.cell(row, seed)
    if known is not None:
        return known
    place, recipe = bench.place(row, seed), bench.recipe(row, seed)
    began, worked = time.monotonic(), time.process_time()
    cell: Cell = {"recipe": row.base, "settings": _settings(bench, row), "seed": seed}
    try:
        result = train(
            recipe,
            bench.data,
            place,
            features=bench.features[row.store - 1],
            text_features=bench.text_features,
            tracker=None,
            on_collapse="warn",
        )
        trained = time.process_time() - worked
        cell |= {"steps": result.steps, "whole": result.resumed_from == 0, "train_seconds": trained}
        model = load(place)
        cell |= {"parameters": _trained_parameters(model), "set_sizes": list(model.set_sizes), "dim": model.dim}
        cell |= _measure(bench, row, model, place)
    except (StoppedError, InputError) as error:  # weights that ran away: a finding, not a failure of the bench
        if not isinstance(error, StoppedError) and "NaN" not in str(error):
            raise
        cell |= {"stopped": str(error)}
    cell |= read_diary(place) | {"seconds": time.monotonic() - began, "processor_seconds": time.process_time() - worked}
    atomic_write.write_text(place.with_suffix(".json"), json.dumps(cell, indent=1, ensure_ascii=False) + "\n")
    clear(place)
    return cell


def _settings(bench: Bench, row: Row) -> list[str]:
    """Those of this row alone."""
    shared = {*bench.plan.common}
    return [setting for setting in bench.plan.settings(row) if setting not in shared]


def _trained_parameters(model: Model) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _measure(bench: Bench, row: Row, model: Model, place: Path) -> Cell:
    """Of the last weights: the model in the folder has the best ones, and val, which is reported, chose them."""
    weights = last_weights(place)
    put(model, weights)
    scores = _scores(bench, row, model)
    found = measured(scores, bench.data)
    ranks(found, place.with_suffix(".npz"))
    if row.keeps_scores:
        with atomic_write.replace_file(place.with_suffix(".npy")) as file:
            np.save(file, scores.tile(slice(None), slice(None)))
    cell: Cell = {"figures": figures(found), "protocol": str(found.stamp)}
    if row.read_as is not None:
        other = bench.plan.rows[row.read_as]
        twin = build_model(bench.recipe(other), bench.data.split("train"))
        put(twin, weights)
        cell["read_as"] = figures(measured(_scores(bench, row, twin.eval()), bench.data))
    return cell


def last_weights(run: Path) -> dict[str, Any]:
    last = Checkpoints(run).load("last")
    if last is None:
        raise SystemExit(f"{run} has no last checkpoint. Delete the folder and run the same command again.")
    return {name.removeprefix("model/"): held for name, held in last[0].items() if name.startswith("model/")}


def put(model: Model, weights: Mapping[str, Any]) -> None:
    """All weights that were trained; a frozen encoder is in no checkpoint."""
    absent, strange = model.load_state_dict(weights, strict=False)
    absent = [name for name in absent if not name.startswith(("image.encoder.", "text.encoder."))]
    if strange or absent:
        raise SystemExit(f"The last checkpoint does not fit its model: {[*strange, *absent][:3]}.")


def _scores(bench: Bench, row: Row, model: Model) -> EmbeddingScores:
    part = bench.data.split(SPLIT)
    found = embed_collection(model, part, features=bench.features[row.store - 1], text_features=bench.text_features)
    return EmbeddingScores(found.images, found.texts, model.similarity)


def measured(subject: Scores | Sequence[Path], data: Collection) -> Evaluation:
    """Scores, or the files of several matrices: an ensemble, as `polysem eval --ensemble mean` has it."""
    given = subject if isinstance(subject, Scores) else [str(path) for path in subject]
    found = evaluate(given, data, protocol="pairs", split=SPLIT, intervals=False)
    return replace(found, stamp=replace(found.stamp, selected_on=NOT_SELECTED))


def figures(found: Evaluation) -> dict[str, float]:
    metrics = found.as_dict()["metrics"]
    return {name: metrics[name] for name in FIGURES}


def ranks(found: Evaluation, file: Path) -> None:
    """Of every query, the place of its first right answer, from 0, and the item it belongs to."""
    kept = {}
    for way, each in found.per_query.items():
        kept[way] = (np.rint(100 / each.values["mrr"]) - 1).astype(np.uint16)
        kept[f"{way}.items"] = each.clusters.astype(np.uint32)
    with atomic_write.replace_file(file) as path:
        np.savez_compressed(path, **kept)


def read_diary(place: Path) -> Cell:
    """What pages draw from metrics.jsonl."""
    records = read_metrics(place / METRICS)
    validations = [
        {key: record[key] for key in ("step", "epoch", "rsum", "log_variance") if key in record}
        for record in records
        if record["kind"] == "validation"
    ]
    steps = [record["info"] for record in records if record["kind"] == "step"]
    cell: Cell = {
        "validations": validations,
        "findings": [record["name"] for record in records if record["kind"] == "diagnosis"],
    }
    if validations and "log_variance" in validations[-1]:
        cell["log_variance"] = validations[-1]["log_variance"]
    if steps and "k_t2i" in steps[0]:
        cell["negatives"] = {way: _thinned([float(step[f"k_{way}"]) for step in steps]) for way in ("i2t", "t2i")}
    return cell


def _thinned(values: Sequence[float]) -> dict[str, Any]:
    bins = np.array_split(np.asarray(values), min(BINS, len(values)))
    return {
        "first": fmean(values[:ENDS]),
        "last": fmean(values[-ENDS:]),
        "curve": [round(float(each.mean()), 2) for each in bins],
    }


def clear(place: Path) -> None:
    """Of a finished run only its diary stays."""
    for path in place.iterdir():
        if path.name != METRICS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
