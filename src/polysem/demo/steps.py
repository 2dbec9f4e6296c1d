"""The steps of the demo, each skipped if it was done before: a demo that was stopped goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from polysem import encoders, recipes
from polysem.data.batching import Batches
from polysem.data.collection import Collection, Skipped
from polysem.data.readers import open_collection
from polysem.demo.example_searches import ExampleSearch, run_example_searches
from polysem.demo.user_data import open_user_data
from polysem.environment.paths import PHOTO_SMALL
from polysem.errors import InputError
from polysem.evaluation import evaluate
from polysem.evaluation.reports.compare import Comparison, compare_separately
from polysem.progress import Progress, ignore
from polysem.recipes import Recipe
from polysem.search import Index
from polysem.synthetic.scenes.make import make_emoji_scenes
from polysem.training import NullObserver, TrainingObserver, train
from polysem.training.feature_cache import cache_both_sides
from polysem.training.splits import split

RECIPES = ("small-vse-infty", "small-dive")
"""One vector for each item, and a set of four."""
SCENES = 1200

BATCHES = 8
"""Batches of an epoch at least, as long as a batch has enough negatives."""
SMALLEST_BATCH = 16
STEPS = 72
"""Of a run at least: what the small recipes take on a thousand pictures."""


@dataclass(frozen=True)
class Demo:
    """What was made.

    Args:
        data: the emoji scenes, or the user's own pictures.
        model: of the index; its folder, or the name of one that comes with polysem.
        comparison: of the models that were trained; None where none was, and `why_not` says why.
        skipped: pictures that could not be indexed.
    """

    folder: Path
    data: Path
    model: Path | str
    comparison: Comparison | None
    indexed: Collection
    index: Path
    searches: Sequence[ExampleSearch]
    why_not: str | None
    skipped: Sequence[Skipped]


def demo(
    folder: str | Path,
    data: str | Path | None = None,
    *,
    scenes: int = SCENES,
    settings: Sequence[str] = (),
    progress: Progress | None = None,
    announce: Callable[[str], None] = lambda _: None,
    screen: TrainingObserver | None = None,
) -> Demo:
    """Make everything in `folder`, or go on where an earlier call stopped.

    Args:
        data: a collection of one's own, indexed with the model for photographs that comes with polysem, and trained on
            if it has captions; by default emoji scenes are made.
        scenes: how many emoji scenes.
        settings: changes to both recipes.
        announce: called with the title of each step before it begins.
        screen: the observer of the trainings, as `show` of `train`.
    """
    folder, own = Path(folder), None if data is None else open_user_data(data)
    if own is not None:
        source, items, home = own.source, own.collection, folder / own.folder
    else:
        announce("Emoji scenes: pictures of several things, five captions each")
        source, home = make_emoji_scenes(folder / "scenes", scenes, seed=0, progress=progress or ignore), folder
        items = open_collection(source)
    stores: dict[str, Any] = {"features": home / "features" / "images", "text_features": home / "features" / "captions"}
    compared = None
    if own is None or own.why_not is None:
        announce("Features of pictures and captions, once for both models")
        readable = _extract(items, stores, recipes.load(RECIPES[0], settings), screen or NullObserver())
        for name in RECIPES:
            recipe = scale_recipe(name, readable, settings)
            announce(f"Training {recipe.name}: {recipe.summary}")
            train(recipe, readable, home / recipe.name, tracker=None, show=screen, **stores)
        third = "" if own is None else f", and both with {PHOTO_SMALL}"
        announce(f"Comparing one vector with a set of four{third}, on pictures that neither has learned from")
        compared = _compare(home, readable, stores, own is not None, progress)
    index = home / "index"
    model: Path | str = home / RECIPES[-1] if own is None else PHOTO_SMALL
    captions = " and their captions" if any(item.captions for item in items) else ""
    announce(f"Indexing {items.name} with {Path(model).name}: {len(items):,} pictures{captions}")
    searches, skipped = _build_index(index, model, items, stores if own is None else {}, progress)
    why_not = None if own is None else own.why_not
    return Demo(folder, source, model, compared, items, index, searches, why_not, skipped)


def scale_recipe(name: str, items: Collection, settings: Sequence[str] = ()) -> Recipe:
    """A recipe for as many pictures as there are: smaller batches and more epochs where they are few, as a few large
    batches are too few steps to learn anything. settings: changes to the recipe, which prevail."""
    recipe = recipes.load(name, settings)
    train, batch = split(items, recipe.data).train, recipe.training.batch
    while batch // 2 >= SMALLEST_BATCH and len(train) // batch < BATCHES:
        batch //= 2
    steps = len(Batches(train, batch, recipe.training.captions, recipe.training.seed))
    epochs = max(recipe.training.epochs, -(-STEPS // steps))
    return recipes.load(name, [f"training.batch={batch}", f"training.epochs={epochs}", *settings])


def _extract(items: Collection, stores: dict[str, Any], recipe: Recipe, observer: TrainingObserver) -> Collection:
    """Make the features of all pictures, the held-out ones too: these are measured and indexed, never trained on.

    Returns:
        The pictures that could be read and have captions.
    """
    both = encoders.build(**recipe.image.encoder), encoders.build(**recipe.text.encoder)
    store, _ = cache_both_sides(items, both, recipe, list(stores.values()), observer.features)
    return items.where([i for i, item in enumerate(items) if item.captions and (store is None or item.id in store)])


def _compare(
    home: Path, items: Collection, stores: dict[str, Any], with_shipped: bool, progress: Progress | None
) -> Comparison:
    measure = partial(
        evaluate, data=items, split=None if items.has_splits else "val", intervals=False, progress=progress
    )
    measured = [measure(home / name, **stores) for name in RECIPES]
    if with_shipped:
        measured.append(measure(PHOTO_SMALL))
    # A model that was trained on some of these pictures has another stamp, and no place beside those that were not.
    compared, *apart = compare_separately(measured)
    left_out = [f"{row.model} is not in the table: {each.stamp}." for each in apart for row in each.rows]
    return replace(compared, notes=(*compared.notes, *left_out))


def _build_index(
    folder: Path, model: Path | str, items: Collection, stores: dict[str, Any], progress: Progress | None
) -> tuple[list[ExampleSearch], Sequence[Skipped]]:
    exists = (folder / "index.sqlite").exists()
    with Index.open(folder, write=True, model=model) if exists else Index.create(folder, model) as index:
        report = index.add(items, progress=progress, **stores)
        if not report.new + report.replaced + report.unchanged:
            raise InputError(
                f"None of the {len(items):,} pictures of {items.name} can be read, e.g. {report.skipped[0].what}: "
                f"{report.skipped[0].why} `polysem data check` says what is wrong with a collection."
            )
        indexed = index.sample("image", index.stats().by_side["image"])
        index.remove({each.id for each in indexed} - {item.id for item in items})  # pictures that are no longer there
        stats = index.stats()
        if stats.audit is None or stats.changed_since_audit:
            index.compact(progress)
            index.verify(sample=50, progress=progress)
        return run_example_searches(index, items), report.skipped
