"""What goes on the map: sets of vectors of one side, and what is known of each item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from polysem.encoders import caption_keys
from polysem.errors import InputError, NonFiniteError, kind
from polysem.inspection.gallery import EmbeddedGallery

MapSide = Literal["image", "text"]


@dataclass(frozen=True, eq=False)
class MapPoints:
    """Items of one side.

    Args:
        vectors: (n, K, D) array or tensor.
        ids: the name of each item. texts: what a reader is shown of it, the id if not given.
        labels: of each item, empty if it has none.
        partners: items with the same partner belong together, as an image and its captions do; the id if not given.
    """

    vectors: Any
    side: MapSide
    ids: Sequence[str]
    texts: Sequence[str] = ()
    labels: Sequence[Sequence[str]] = ()
    partners: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.side not in ("image", "text"):
            raise InputError(f"A side is 'image' or 'text', got {self.side!r}.")
        vectors = self.tensor
        if vectors.ndim != 3 or not vectors.is_floating_point():
            raise InputError(
                f"Points are floating-point vectors of shape (items, set size, dim), got {kind(self.vectors)}. "
                "Single vectors are sets of one: x[:, None]."
            )
        for name in ("ids", "texts", "labels", "partners"):
            values = getattr(self, name)
            if len(values) != len(vectors) and (values or name == "ids"):
                raise InputError(f"{len(vectors)} {self.side} items need as many {name}, got {len(values)}.")
        if not bool(torch.isfinite(vectors).all()):
            raise NonFiniteError(
                f"Vectors of {self.side}s hold NaN or infinity and cannot be put on a map. Look for damaged features, "
                "or for a training run that diverged."
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tensor(self) -> Tensor:
        return torch.as_tensor(self.vectors)

    @property
    def elements(self) -> int:
        """How many vectors there are in all."""
        return len(self.ids) * int(self.tensor.shape[1])

    def select(self, rows: Sequence[int]) -> MapPoints:
        """The items at these positions."""
        columns: Sequence[Sequence[Any]] = (self.ids, self.texts, self.labels, self.partners)
        selected = [[column[row] for row in rows] if column else [] for column in columns]
        return MapPoints(self.tensor[torch.tensor(rows, dtype=torch.long)], self.side, *selected)


def make_points(gallery: EmbeddedGallery) -> list[MapPoints]:
    """The images and the captions of a collection, as a model embeds them."""
    items, embeddings = gallery.items, gallery.embeddings
    ids = [item.id for item in items]
    texts = [item.captions[0] if item.captions else item.id for item in items]
    owners = [items[owner] for owner in items.caption_items.tolist()]
    keys, partners = caption_keys(items), [item.id for item in owners]
    return [
        MapPoints(embeddings.images, "image", ids, texts, [item.labels for item in items], ids),
        MapPoints(embeddings.texts, "text", keys, items.captions, [item.labels for item in owners], partners),
    ]
