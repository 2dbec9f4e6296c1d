"""A model and the split of a collection to inspect, with the sets of its images and captions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from polysem.data.collection import Collection
from polysem.data.readers import open_collection
from polysem.errors import InputError
from polysem.evaluation.embeddings import Embeddings, embed_collection
from polysem.evaluation.evaluate import select_split
from polysem.models import Model, load
from polysem.progress import Progress

StorePath = str | Path | None


@dataclass(frozen=True, eq=False)
class EmbeddedGallery:
    """The items of a split and their embeddings. name: of the model, for a reader."""

    name: str
    model: Model
    items: Collection
    split: str
    embeddings: Embeddings

    @property
    def summary(self) -> str:
        return f"{self.items.name} {self.split}, {len(self.items):,} images, {len(self.items.captions):,} captions"


def open_gallery(
    model: str | Path | Model,
    data: str | Path | Collection,
    *,
    split: str | None = None,
    features: StorePath = None,
    text_features: StorePath = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> EmbeddedGallery:
    """Embed a split of a collection.

    Args:
        split: by default "test" if there is one, else "val", else all of it.
        features, text_features: feature stores to take instead of images and captions.
        limit: how many items to take, spread evenly over the split.
    """
    loaded = model if isinstance(model, Model) else load(model)
    collection = data if isinstance(data, Collection) else open_collection(data)
    items, split = select_split(collection, split, [loaded])
    if not items.captions:
        raise InputError(f"{collection.name} {split} has no captions. Give a collection with captions.")
    if limit is not None and limit < len(items):
        items = items.where([i * len(items) // limit for i in range(limit)])
        split = f"{split}, {limit:,} of its items"
    name = type(model).__name__ if isinstance(model, Model) else Path(model).resolve().name
    report = None if progress is None else lambda _, done, total: progress(f"encoding with {name}", done, total)
    embeddings = embed_collection(loaded, items, features=features, text_features=text_features, progress=report)
    return EmbeddedGallery(name, loaded, items, split, embeddings)
