"""The steps, each of which is skipped if it was done before: a demo that was stopped goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from polysem import encoders, recipes
from polysem.data.collection import Collection, Skipped
from polysem.data.readers import open_collection
from polysem.data.store import FeatureStore
from polysem.demo.questions import Found, ask
from polysem.demo.scale_recipe import paced
from polysem.demo.user_data import opened
from polysem.environment.paths import PHOTO_SMALL
from polysem.errors import InputError
from polysem.evaluation import evaluate
from polysem.evaluation.reports.compare import Comparison, compare_separately
from polysem.progress import ignore
from polysem.recipes import Recipe
from polysem.search import Index
from polysem.synthetic.scenes.make import make_emoji_scenes
from polysem.training import train
from polysem.training.precompute import features_of
from polysem.training.train import Silent

RECIPES = ("small-vse-infty", "small-dive")
"""One vector for each item, and a set of four."""
SCENES = 1200

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Demo:
    """What was made.

    data: the emoji scenes, or the user's own pictures. model: of the index; its folder, or the name of one that comes
    with polysem. comparison: of the models that were trained; None where none was, and `why_not` says why.
    skipped: pictures that could not be indexed.
    """

    folder: Path
    data: Path
    model: Path | str
    comparison: Comparison | None
    indexed: Collection
    index: Path
    searches: Sequence[Found]
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
    screen: Any = None,
) -> Demo:
    """Make everything in `folder`, or go on where an earlier call stopped.

    data: a collection of one's own, indexed with the model for photographs that comes with polysem, and trained on if
    it has captions; by default emoji scenes are made. settings: changes to both recipes. announce: told each step
    before it begins. screen: who watches the training, as for `train`.
    """
    folder, own = Path(folder), None if data is None else opened(data)
    if own is not None:
        source, items, home = own.source, own.collection, folder / own.place
    else:
        announce("Emoji scenes: pictures of several things, five captions each")
        source, home = make_emoji_scenes(folder / "scenes", scenes, seed=0, progress=progress or ignore), folder
        items = open_collection(source)
    stores: dict[str, Any] = {"features": home / "features" / "images", "text_features": home / "features" / "captions"}
    compared = None
    if own is None or own.why_not is None:
        announce("Features of pictures and captions, once for both models")
        readable = _extract(items, stores, recipes.load(RECIPES[0], settings), screen or Silent())
        for name in RECIPES:
            recipe = paced(name, readable, settings)
            announce(f"Training {recipe.name}: {recipe.summary}")
            train(recipe, readable, home / recipe.name, tracker=None, show=screen, **stores)
        third = "" if own is None else f", and both with {PHOTO_SMALL}"
        announce(f"Comparing one vector with a set of four{third}, on pictures that neither has learned from")
        compared = _compare(home, readable, stores, own is not None, progress)
    place = home / "index"
    model: Path | str = home / RECIPES[-1] if own is None else PHOTO_SMALL
    captions = " and their captions" if any(item.captions for item in items) else ""
    announce(f"Indexing {items.name} with {Path(model).name}: {len(items):,} pictures{captions}")
    searches, skipped = _index(place, model, items, stores if own is None else {}, progress)
    why_not = None if own is None else own.why_not
    return Demo(folder, source, model, compared, items, place, searches, why_not, skipped)


def _extract(lessons: Collection, stores: dict[str, Any], recipe: Recipe, screen: Any) -> Collection:
    """The features of all pictures, the held-out ones too: these are measured and indexed, never trained on.

    What can be learned from and measured with: pictures that could be read and have captions.
    """
    for side, place, what in (
        (recipe.image, stores["features"], "images"),
        (recipe.text, stores["text_features"], "captions"),
    ):
        encoder = encoders.build(**side.encoder)

        def report(_: str, done: int, total: int, /, what: str = what) -> None:
            screen.features(what, done, total)

        features_of(lessons, encoder, place, report)
    store = FeatureStore.open(stores["features"])
    return lessons.where([i for i, item in enumerate(lessons) if item.id in store and item.captions])


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


def _index(
    place: Path, model: Path | str, items: Collection, stores: dict[str, Any], progress: Progress | None
) -> tuple[list[Found], Sequence[Skipped]]:
    there = (place / "index.sqlite").exists()
    with Index.open(place, write=True, model=model) if there else Index.create(place, model) as index:
        report = index.add(items, progress=progress, **stores)
        if not report.new + report.replaced + report.unchanged:
            raise InputError(
                f"None of the {len(items):,} pictures of {items.name} can be read, e.g. {report.skipped[0].what}: "
                f"{report.skipped[0].why} `polysem data check` says what is wrong with a collection."
            )
        held = index.sample("image", index.stats().by_side["image"])
        index.remove({each.id for each in held} - {item.id for item in items})  # pictures that are no longer there
        known = index.stats()
        if known.audit is None or known.changed_since_audit:
            index.compact(progress)
            index.verify(sample=50, progress=progress)
        return ask(index, items), report.skipped
