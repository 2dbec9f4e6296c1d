"""One run over DINOv2 tokens: train a row, measure its last weights, keep its figures and those of every query."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results_dinov2_rows import Plan, Row, Trial
from results_run import NOT_SELECTED, Cell, clear, encoder_of, read_diary

from polysem import atomic_write, recipes
from polysem.data.collection import Collection
from polysem.data.store.layout import read_manifest
from polysem.errors import InputError
from polysem.evaluation import Evaluation, evaluate
from polysem.evaluation.embeddings import Embeddings, embed_collection
from polysem.evaluation.protocols.parts import PartsProtocol
from polysem.evaluation.score_matrix import EmbeddingScores
from polysem.features import LocalFeatures
from polysem.models import Model, load
from polysem.recipes import Recipe
from polysem.training import train
from polysem.training.loop import StoppedError

SPLIT = "val"
PAIRS = ("rsum", *(f"{way}.r{cut}" for way in ("i2t", "t2i") for cut in (1, 5, 10)), "i2t.map_at_r", "i2t.r_precision")
PARTS = tuple(f"{kind}.{metric}" for kind in ("nouns", "phrases") for metric in ("map", "precision10"))
OF_EACH_IMAGE = ("map_at_r", "r_precision")


@dataclass(frozen=True)
class Bench:
    """What all runs share. features, text_features: stores of what the frozen encoders make of images and captions."""

    plan: Plan
    data: Collection
    features: Path | None
    text_features: Path | None
    out: Path

    @functools.cached_property
    def search_data(self) -> Collection:
        """Train alone, a tenth of it held out: always the same one, by the items' ids. Val is not in it."""
        held, rest = self.data.split("train").hold_out()
        items = [replace(item, split=name) for name, part in (("train", rest), (SPLIT, held)) for item in part]
        return replace(self.data, name=f"{self.data.name} train", items=items)

    @functools.cached_property
    def parts(self) -> Collection:
        """The pictures of val, with the queries of the protocol `parts` for captions."""
        return PartsProtocol().gallery(self.data.split(SPLIT))

    def recipe(self, row: Row, trial: Trial, seed: int = 0) -> Recipe:
        made = [] if self.features is None else [f"image.encoder={encoder_of(self.features)}"]
        settings = [*made, *self.plan.settings(row, trial), f"training.seed={seed}"]
        return recipes.load(row.base, settings)

    def place(self, row: Row, trial: Trial, seed: int, searching: bool) -> Path:
        """Of a run's folder; its figures are beside it. All that makes a run is in its name: rows may share one."""
        content = self.recipe(row, trial, seed).model_dump(mode="json", exclude={"name", "summary", "paper"})
        stores = [self.features, self.text_features]
        made = [None if store is None else read_manifest(store).fingerprint for store in stores]
        data = self.search_data if searching else self.data
        told = json.dumps([content, made, data.name, data.splits], sort_keys=True)
        return (
            self.out
            / ("search" if searching else "runs")
            / f"{row.base}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
        )

    def cell(self, row: Row, trial: Trial, seed: int, searching: bool = False) -> Cell | None:
        """What a finished run found."""
        try:
            file = self.place(row, trial, seed, searching).with_suffix(".json")
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None


def run(bench: Bench, row: Row, trial: Trial, seed: int, searching: bool = False) -> Cell:
    """Train and measure, or go on where an earlier call was stopped. What is finished is read.

    searching: on train without a tenth, and measured on that tenth by RSUM alone.
    """
    known = bench.cell(row, trial, seed, searching)
    if known is not None:
        return known
    place, recipe = bench.place(row, trial, seed, searching), bench.recipe(row, trial, seed)
    place.parent.mkdir(parents=True, exist_ok=True)
    began, worked = time.monotonic(), time.process_time()
    cell: Cell = {"row": row.name, "recipe": row.base, "trial": vars(trial), "seed": seed}
    stores = {"features": bench.features, "text_features": bench.text_features}
    try:
        data = bench.search_data if searching else bench.data
        result = train(recipe, data, place, **stores, tracker=None, on_collapse="warn")
        cell |= {"steps": result.steps, "train_seconds": time.process_time() - worked}
        if not searching:
            cell |= measure(bench, load(place), place)
    except (StoppedError, InputError) as error:  # weights that diverged: a finding, not a failure of the bench
        if not isinstance(error, StoppedError) and "NaN" not in str(error):
            raise
        cell |= {"stopped": str(error)}
    cell |= read_diary(place) | {"seconds": time.monotonic() - began, "processor_seconds": time.process_time() - worked}
    if "stopped" not in cell:
        cell["last_rsum"] = cell["validations"][-1]["rsum"]
    atomic_write.write_text(place.with_suffix(".json"), json.dumps(cell, indent=1, ensure_ascii=False) + "\n")
    clear(place)
    return cell


def measure(bench: Bench, model: Model, place: Path) -> Cell:
    """Figures of val under the protocols `pairs` and `parts`. A run is validated once, at its last step, so that the
    weights of its model folder are the last ones."""
    made = embed_collection(model, bench.data.split(SPLIT), features=bench.features, text_features=bench.text_features)
    asked = _embed_queries(model, bench)
    pairs = _evaluate(made, model, bench.data, "pairs")
    parts = _evaluate(Embeddings(made.images, asked), model, bench.data, "parts")
    keep_queries(pairs, parts, place.with_suffix(".npz"))
    figures = {name: pairs.as_dict()["metrics"][name] for name in PAIRS}
    figures |= {name: value for name in PARTS if (value := parts.as_dict()["metrics"].get(name)) is not None}
    return {
        "figures": figures,
        "protocols": {"pairs": str(pairs.stamp), "parts": str(parts.stamp)},
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "set_sizes": list(model.set_sizes),
        "dim": model.dim,
    }


def _evaluate(made: Embeddings, model: Model, data: Collection, protocol: str) -> Evaluation:
    scores = EmbeddingScores(made.images, made.texts, model.similarity)
    found = evaluate(scores, data, protocol=protocol, split=SPLIT, intervals=False)
    return replace(found, stamp=replace(found.stamp, selected_on=NOT_SELECTED))


_QUERIES: dict[tuple[str, str], LocalFeatures] = {}
"""What a frozen text encoder makes of the queries, the same for every run."""


def _embed_queries(model: Model, bench: Bench) -> torch.Tensor:
    """(Q, L, D): the sets of the queries of the protocol `parts`."""
    key = (model.text.encoder.fingerprint(), bench.data.name)
    with torch.inference_mode():
        if key not in _QUERIES:
            encoder: Any = model.text.encoder.eval()
            _QUERIES[key] = encoder(encoder.tokenize(bench.parts.captions))
        model.text.eval()
        return model.text(_QUERIES[key]).vectors


def keep_queries(pairs: Evaluation, parts: Evaluation, file: Path) -> None:
    """Of every caption and image, the place of its first right answer, from 0; of every image and of every query for
    a part its own figures; and of each the item, or the noun, that it belongs to."""
    kept: dict[str, Any] = {}
    for way, each in pairs.per_query.items():
        kept[way] = (np.rint(100 / each.values["mrr"]) - 1).astype(np.uint16)
        kept[f"{way}.items"] = each.clusters.astype(np.uint32)
    kept |= {f"i2t.{name}": pairs.per_query["i2t"].values[name].astype(np.float32) for name in OF_EACH_IMAGE}
    kept |= of_parts(parts)
    with atomic_write.replace_file(file) as path:
        np.savez_compressed(path, **kept)


def of_parts(parts: Evaluation) -> Mapping[str, Any]:
    """Average precision and precision@10 of every query for a part."""
    kept: dict[str, Any] = {}
    for kind in ("nouns", "phrases"):
        if kind in parts.per_query:
            kept |= {
                f"{kind}.{name}": values.astype(np.float32) for name, values in parts.per_query[kind].values.items()
            }
            kept[f"{kind}.items"] = parts.per_query[kind].clusters.astype(np.uint32)
    return kept
