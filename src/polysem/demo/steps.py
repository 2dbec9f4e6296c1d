"""The steps of the demo, each skipped if it was done before: a demo that was stopped is resumed."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from polysem import encoders, recipes
from polysem.data.batching import Batches
from polysem.data.collection import Collection, Item, Skipped
from polysem.data.readers import open_collection
from polysem.environment import choose_model
from polysem.errors import InputError
from polysem.evaluation import evaluate
from polysem.evaluation.reports.compare import Comparison, compare_separately
from polysem.progress import Progress, ignore
from polysem.recipes import Recipe
from polysem.search import Index, SearchResults
from polysem.synthetic.scenes.make import make_emoji_scenes
from polysem.training import NullObserver, TrainingObserver, train
from polysem.training.feature_cache import cache_both_sides, content_digest
from polysem.training.splits import split
from polysem.weights import find_weights

RECIPE = "small-sets"
"""A set of vectors for each picture, and one vector for each caption."""
MODELS = ("single", "single-equal-bytes", "set")
"""What is trained by the one recipe: its twin with one vector for a picture, another whose vector takes as many bytes
as the set, and the set."""
STRONGER = "dinov2"
"""The recipe over DINOv2 ends in this: for one's own pictures, where its weights were fetched."""
SCENES = 1300

BATCHES = 8
"""Batches of an epoch at least, as long as a batch has enough negatives."""
SMALLEST_BATCH = 16
FEWEST = 40
"""Pictures with captions that are worth training on."""
STEPS = 256
"""Of a run at least: a set learns for longer than a single vector before it is ahead."""
SHOWN = 3
"""Results of an example search."""
DEPTH = 1000
"""How far down a picture is looked for."""
GUESSES = ("people outdoors", "an animal")
"""Searched for where pictures have neither captions nor labels."""
_COMMON = 0.25
"""Share of the pictures above which a label is too easy to find."""


@dataclass(frozen=True)
class ExampleSearch:
    """An example search: the query, why it was chosen and how it went, and the best results."""

    query: str
    why: str
    results: SearchResults


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
    """Make everything in `folder`, or resume an earlier call.

    Args:
        data: a collection of one's own, indexed with the best model for photographs that is here, and trained on if it
            has captions, over DINOv2-small where its weights are; by default emoji scenes are made.
        scenes: how many emoji scenes.
        settings: changes to the recipe.
        announce: called with the title of each step before it begins.
        screen: the observer of the trainings, as `show` of `train`.
    """
    folder = home = Path(folder)
    why_not = None
    if data is None:
        announce("Emoji scenes: pictures of several things, five captions each")
        source = make_emoji_scenes(folder / "scenes", scenes, seed=0, progress=progress or ignore)
        items = open_collection(source)
    else:
        source, path = Path(data), Path(os.path.abspath(Path(data).expanduser()))  # "." has no name of its own
        items = open_collection(path)
        if items.kind != "image":
            raise InputError(f"{data} is a collection of {items.kind}; the demo takes pictures, in a folder.")
        captioned = sum(bool(item.captions) for item in items)
        if captioned < FEWEST:
            why_not = f"{captioned:,} of its {len(items):,} pictures have captions, and learning takes {FEWEST} or more"
        elif items.has_splits and not {"train", "val"} <= items.splits.keys():
            why_not = f"its splits are {', '.join(items.splits)}, and learning takes train and val"
        # A model knows what it learned from: other captions make another one. An index is updated in its place.
        digest = hashlib.sha256(str(path).encode(errors="surrogateescape"))
        if why_not is None:
            content = [content_digest(items, takes) for takes in ("pixels", "tokens")]
            digest.update("\n".join([*content, *(item.split or "" for item in items)]).encode(errors="surrogatepass"))
        home = folder / f"{items.name}-{digest.hexdigest()[:8]}"
    stronger = data is not None and find_weights("dinov2-small") is not None
    name, suffix = (f"{RECIPE}-{STRONGER}", f"-{STRONGER}") if stronger else (RECIPE, "")
    planned = plan_models(name, settings)
    runs = {model: home / f"{model}{suffix}" for model in planned}
    stores: dict[str, Any] = {
        "features": home / "features" / (f"images-{STRONGER}" if stronger else "images"),
        "text_features": home / "features" / "captions",
    }
    index = home / "index"
    model: Path | str = runs["set"] if data is None else Index.find_model(index) or choose_model().name
    compared = None
    if why_not is None:
        announce("Features of pictures and captions, once for all models")
        # Of the held-out pictures too: these are measured and indexed, never trained on.
        first, show = recipes.load(name, settings), (screen or NullObserver()).features
        both = encoders.build(**first.image.encoder), encoders.build(**first.text.encoder)
        store, _ = cache_both_sides(items, both, first, list(stores.values()), show)
        known = [i for i, item in enumerate(items) if item.captions and (store is None or item.id in store)]
        readable = items.where(known)
        for each, changes in planned.items():
            recipe = scale_recipe(name, readable, [*settings, *changes])
            announce(f"Training {each}: {describe_model(recipe, changes)}")
            train(recipe, readable, runs[each], tracker=None, show=screen, **stores)
        other = "" if data is None else f", and these with {model}"
        announce(f"Comparing one vector with a set{other}, on pictures that none of them has learned from")
        compared = _compare(list(runs.values()), readable, stores, None if data is None else str(model), progress)
    captions = " and their captions" if any(item.captions for item in items) else ""
    announce(f"Indexing {items.name} with {Path(model).name}: {len(items):,} pictures{captions}")
    searches, skipped = _build_index(index, model, items, stores if data is None else {}, progress)
    return Demo(folder, source, model, compared, items, index, searches, why_not, skipped)


def plan_models(name: str, settings: Sequence[str] = ()) -> dict[str, list[str]]:
    """What each of the demo's models changes of the recipe beyond `settings`: the same parts, rate and epochs for all.

    Example:
        >>> plan_models("small-sets")["single-equal-bytes"]
        ['image.sets.k=1', 'dim=2048']
    """
    recipe = recipes.load(name, settings)
    one, numbers = ["image.sets.k=1"], recipe.image.sets["k"] * int(recipe.dim)
    return dict(zip(MODELS, (one, [*one, f"dim={numbers}"], []), strict=True))


def describe_model(recipe: Recipe, changes: Sequence[str]) -> str:
    """What stands for a picture, and the recipe with what was changed of it."""
    count, dim = recipe.image.sets["k"], int(recipe.dim)
    vectors = f"a vector of {dim:,} numbers" if count == 1 else f"{count} vectors of {dim:,} numbers"
    return f"{vectors} for each picture ({' '.join([recipe.name, *changes])})"


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


def _compare(
    runs: Sequence[Path], items: Collection, stores: dict[str, Any], ready: str | None, progress: Progress | None
) -> Comparison:
    measure = partial(
        evaluate, data=items, split=None if items.has_splits else "val", intervals=False, progress=progress
    )
    measured = [measure(run, **stores) for run in runs]
    if ready is not None:
        measured.append(measure(ready))
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


def run_example_searches(index: Index, items: Collection) -> list[ExampleSearch]:
    """A label and a caption, or two captions, of pictures held out from training; guesses where there are neither."""
    held_out: Sequence[Item] = list(items.hold_out()[0])
    if items.has_splits:
        held_out = [item for item in items if item.split == "test"]
    held_out = held_out or list(items)
    searches = []
    labels = Counter(label for item in held_out for label in item.labels)
    if labels:
        # Groups are not worth a search: nearly everything is a "thing".
        groups = {box.group for item in held_out for box in item.boxes}
        counts = Counter({label: count for label, count in labels.items() if label not in groups}) or labels
        rare = Counter({label: count for label, count in counts.items() if count <= _COMMON * len(held_out)})
        label, count = (rare or counts).most_common(1)[0]
        results = index.search(label, k=SHOWN)
        right = sum(label in result.labels for result in results)
        why = f"the label of {count} of {len(held_out)} held-out pictures, and of {right} of the {len(results)} found"
        searches.append(ExampleSearch(label, why, results))
    for item in [item for item in held_out if item.captions][: len(GUESSES) - len(searches)]:
        caption = max(item.captions, key=len)  # the one that says most
        results = index.search(caption, k=DEPTH)
        rank = next((result.rank for result in results if result.id == item.id), None)
        position = f"not among the first {len(results):,}" if rank is None else f"at place {rank:,} of {results.of:,}"
        why = f"said of the held-out picture {item.id}, which is {position}"
        searches.append(ExampleSearch(caption, why, replace(results, items=results.items[:SHOWN])))
    why = "a guess: these pictures have neither captions nor labels"
    return [*searches, *(ExampleSearch(guess, why, index.search(guess, k=SHOWN)) for guess in GUESSES[len(searches) :])]
