"""The small data set with labels, and recipes of labels that train on it in moments."""

from __future__ import annotations

from pathlib import Path

from polysem import recipes
from polysem.data import open_collection
from polysem.data.batching import Batches
from polysem.models import Model
from polysem.recipes import Recipe
from polysem.training import loading
from polysem.training.backward import Criterion
from polysem.training.build import build_model, label_matrix
from polysem.training.masked_modelling import build_masked_modelling
from polysem.training.splits import split
from training.small import WORDS, make_data

WIDTHS = ("image.encoder.dim=16", "text.encoder.dim=16", "image.sets.input_dim=16")
SHORT = ("text.encoder.word_dim=8", "data.min_count=1", "training.batch=6", "training.epochs=3")
LAYERS = ("layers=1", "heads=2", "ff=16", "dropout=0.0")


def make_labelled(folder: Path, **sizes: int) -> Path:
    """An image's labels are the words of its captions that mean something."""
    make_data(folder, **sizes)
    for split_name in ("train", "dev"):
        captions = (folder / f"{split_name}_caps.txt").read_text().splitlines()
        images = len((folder / f"{split_name}_ids.txt").read_text().splitlines())
        each = len(captions) // images
        rows = [set(" ".join(captions[i * each : (i + 1) * each]).split()) & set(WORDS) for i in range(images)]
        (folder / f"{split_name}_labels.txt").write_text("\n".join(";".join(sorted(row)) for row in rows) + "\n")
    return folder


def tiny(name: str, *overrides: str) -> Recipe:
    given = [*WIDTHS, *SHORT]
    if "dscmr" not in name:
        given += [f"image.sets.{knob}" for knob in LAYERS]
    if "independent" in name:
        given += ["text.sets.input_dim=16", *(f"text.sets.{knob}" for knob in LAYERS)]
    if "dscmr" in name:
        given += ["dim=16"]
    return recipes.load(name, [*given, *overrides])


def assembled(recipe: Recipe, data: Path) -> tuple[Model, Criterion, loading.BatchLoader]:
    """Everything a step needs."""
    train = split(open_collection(data), recipe.data).train
    model = build_model(recipe, train)
    masker, heads = build_masked_modelling(recipe, model, train, images=None)
    feeder = loading.BatchLoader(
        model,
        *loading.build_sources(model, train, (None, None), recipe),
        Batches(train, recipe.training.batch, recipe.training.captions, recipe.training.seed),
        labels=label_matrix(train, model.labels or ()),
        masker=masker,
    )
    return model, Criterion(recipe, heads), feeder
