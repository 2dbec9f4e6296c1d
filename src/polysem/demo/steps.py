"""The steps, each of which is skipped if it was done before: a demo that was stopped goes on from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polysem import encoders, recipes
from polysem.data.collection import Collection
from polysem.data.emoji.make import make_emoji_scenes
from polysem.data.readers import open_collection
from polysem.evaluation import evaluate
from polysem.evaluation.reports.compare import Comparison, compare
from polysem.search import Index, Results
from polysem.training import train
from polysem.training.precompute import features_of
from polysem.training.train import Silent

RECIPES = ("small-vse-infty", "small-dive")
"""One vector for each item, and a set of four."""
SCENES = 1000
_FEWEST = 40
"""Pictures with captions that are worth training on."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Found:
    """An example search: what was asked, why this, and what was found."""

    query: str
    why: str
    results: Results


@dataclass(frozen=True)
class Demo:
    """What was made. trained_on: the collection the models learned from; not the user's where that has no captions."""

    folder: Path
    trained_on: Collection
    indexed: Collection
    comparison: Comparison
    index: Path
    searches: Sequence[Found]

    @property
    def own_model(self) -> bool:
        """Whether the model has learned from the very collection that is searched."""
        return self.trained_on is self.indexed


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

    data: a collection of one's own, to be trained on if it has captions, and searched in any case; by default emoji
    scenes are made. settings: changes to both recipes. announce: told each step before it begins. screen: who watches
    the training, as for `train`.
    """
    folder = Path(folder)
    own = None if data is None else open_collection(data)
    learnable = own is not None and sum(bool(item.captions) for item in own) >= _FEWEST
    if own is not None and learnable:
        lessons = own
    else:
        announce("Emoji scenes: pictures of several things, five captions each")
        watch = None if progress is None else lambda done, of: progress("making scenes", done, of)
        lessons = open_collection(make_emoji_scenes(folder / "scenes", scenes, seed=0, progress=watch))
    stores: dict[str, Any] = {
        "features": folder / "features" / "images",
        "text_features": folder / "features" / "captions",
    }
    announce("Features of pictures and captions, once for both models")
    _extract(lessons, stores, settings, screen or Silent())
    for recipe in RECIPES:
        loaded = recipes.load(recipe, settings)
        announce(f"Training {recipe}: {loaded.summary}")
        train(loaded, lessons, folder / recipe, tracker=None, show=screen, **stores)
    announce("Comparing one vector with a set of four, on pictures that neither has seen")
    measured = [evaluate(str(folder / name), lessons, intervals=False, progress=progress, **stores) for name in RECIPES]
    indexed = own or lessons
    announce(f"Indexing {indexed.name}: {len(indexed):,} pictures and their captions")
    place = folder / ("index" if own is None else f"index-{indexed.name}")
    with _opened(place, folder / RECIPES[-1]) as index:
        index.add(indexed, progress=progress, **(stores if indexed is lessons else {}))
        if index.stats().changed_since_audit or index.stats().audit is None:
            index.compact(progress)
            index.verify(sample=50, progress=progress)
        searches = [Found(query, why, index.search(query, k=3)) for query, why in _questions(indexed)]
    return Demo(folder, lessons, indexed, compare(measured), place, searches)


def _extract(lessons: Collection, stores: dict[str, Any], settings: Sequence[str], screen: Any) -> None:
    """Of all pictures, the held-out ones too: these are measured and indexed, never trained on."""
    recipe = recipes.load(RECIPES[0], settings)
    for side, place, what in (
        (recipe.image, stores["features"], "images"),
        (recipe.text, stores["text_features"], "captions"),
    ):
        encoder = encoders.build(**side.encoder)
        features_of(lessons, encoder, place, partial(screen.features, what))


def _opened(place: Path, model: Path) -> Index:
    if (place / "index.sqlite").exists():
        return Index.open(place, write=True, model=model)
    return Index.create(place, model)


def _questions(items: Collection) -> list[tuple[str, str]]:
    """Two queries that this collection can answer, and where they come from."""
    held_out = [item for item in items if item.split == "test"] or list(items)
    labels = Counter(label for item in held_out for label in item.labels)
    said = next((item.captions[0] for item in held_out if item.captions), None)
    asked = []
    if labels:
        label, count = labels.most_common(1)[0]
        asked.append((label, f"{count} of {len(held_out)} held-out pictures are labelled so"))
    if said is not None:
        asked.append((said, f"said of the held-out picture {next(i.id for i in held_out if i.captions)}"))
    return asked or [("people outdoors", "a guess: these pictures have no captions"), ("an animal", "another guess")]
