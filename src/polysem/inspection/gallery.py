"""A model and the part of a collection to look at, with the sets of its images and captions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from polysem.data import train_overlap
from polysem.data.collection import HELD_OUT_NAME, Collection
from polysem.data.readers import open_collection
from polysem.errors import InputError
from polysem.evaluation.embeddings import Embeddings, embed
from polysem.models import Model, load

Progress = Callable[[str, int, int], None]
"""Stage, done, of."""
Store = str | Path | None


@dataclass(frozen=True, eq=False)
class Gallery:
    """name: of the model, for a reader. split: what was looked at."""

    name: str
    model: Model
    items: Collection
    split: str
    embeddings: Embeddings

    @property
    def described(self) -> str:
        return f"{self.items.name} {self.split}, {len(self.items):,} images, {len(self.items.captions):,} captions"


def open_gallery(
    model: str | Path | Model,
    data: str | Path | Collection,
    *,
    split: str | None = None,
    features: Store = None,
    text_features: Store = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> Gallery:
    """split: by default "test" if there is one, else "val", else all of it. most: how many items to take, spread evenly
    over the split."""
    opened = model if isinstance(model, Model) else load(model)
    collection = data if isinstance(data, Collection) else open_collection(data)
    part, called = _part(collection, split, opened)
    if not part.captions:
        raise InputError(
            f"{collection.name} {called} has no captions, and without them there is nothing to compare its pictures "
            "with. Give a collection with captions; `polysem data check` shows what is there."
        )
    if most is not None and most < len(part):
        part = part.where([i * len(part) // most for i in range(most)])
        called = f"{called}, {most:,} of its items"
    name = type(model).__name__ if isinstance(model, Model) else Path(model).resolve().name
    told = None if progress is None else lambda _, done, total: progress(f"encoding with {name}", done, total)
    return Gallery(
        name,
        opened,
        part,
        called,
        embed(opened, part, features=features, text_features=text_features, progress=told),
    )


def _part(collection: Collection, wanted: str | None, model: Model) -> tuple[Collection, str]:
    if not collection.has_splits:
        if wanted not in (None, "all", "val"):
            raise InputError(
                f"{collection.name} has no splits, so no {wanted!r}. Take --split all, or --split val for the tenth "
                "that training holds out by id."
            )
        trained_here = train_overlap.share(model.provenance.get("data", {}).get("items", []), collection) > 0
        if wanted == "val" or (wanted is None and trained_here):
            return collection.held_out()[0], HELD_OUT_NAME
        return collection, "all"
    if wanted is None:
        wanted = next(name for name in ("test", "val", *collection.splits) if name in collection.splits)
    return (collection if wanted == "all" else collection.split(wanted)), wanted
