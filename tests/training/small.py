"""A small data set of precomputed features on disk, and recipes that train on it in moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from polysem import recipes
from polysem.data import open_collection
from polysem.data.batching import Batches
from polysem.models import Model
from polysem.recipes import Recipe
from polysem.training import loading
from polysem.training.backward import Criterion
from polysem.training.build import build_model
from polysem.training.phrases import find_phrases
from polysem.training.splits import split

WORDS = ("red", "blue", "green", "small", "large", "old", "dog", "cat", "tree", "car", "boat", "house")
TINY = ("dim=16", "text.encoder.word_dim=8", "data.min_count=1", "training.batch=6", "training.epochs=3")


def make_data(
    folder: Path, train: int = 24, val: int = 8, captions: int = 5, dim: int = 10, english: bool = False
) -> Path:
    """Regions that depend on the words of the captions, so that there is something to learn. english: every word a noun
    with its article, so that phrases can be found."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    meaning = rng.normal(size=(len(WORDS), dim)).astype(np.float32)
    for name, count in (("train", train), ("dev", val)):
        regions = np.zeros((count, 7, dim), np.float32)
        lines = []
        for image in range(count):
            chosen = rng.choice(len(WORDS), 4, replace=False)
            regions[image] = meaning[rng.choice(chosen, 7)] + 0.1 * rng.normal(size=(7, dim))
            for _ in range(captions):
                picked = rng.choice(chosen, int(rng.integers(2, 5)), replace=False)
                words = [f"a {WORDS[w]}" if english else WORDS[w] for w in picked]
                lines.append(f"{name} {image} " + (" and " if english else " ").join(words))
        np.save(folder / f"{name}_ims.npy", regions)
        (folder / f"{name}_caps.txt").write_text("\n".join(lines) + "\n")
        (folder / f"{name}_ids.txt").write_text("\n".join(f"{name}{i}" for i in range(count)) + "\n")
    return folder


def tiny(name: str, *overrides: str) -> Recipe:
    return recipes.load(name, [*TINY, *overrides])


def assembled(recipe: Recipe, data: Path) -> tuple[Model, Criterion, Batches, loading.BatchLoader]:
    """Everything a step needs, in double precision so that equal means equal."""
    train = split(open_collection(data), recipe.data).train
    model = build_model(recipe, train)
    phrases = find_phrases(train, recipe.phrases)
    sources = loading.build_sources(model, train, (None, None), recipe, [phrase.text for phrase in phrases])
    shown = [phrase.items for phrase in phrases]
    batches = Batches(train, recipe.training.batch, recipe.training.captions, recipe.training.seed, shown)
    return model, Criterion(recipe), batches, loading.BatchLoader(model, *sources, batches)


def gradients(model: Model) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def cpu() -> Accelerator:
    return Accelerator(cpu=True)


def weights(run: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(run / "model.safetensors")
