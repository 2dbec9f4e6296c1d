"""What goes on the map: sets of vectors of one side, and what is known of each item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from polysem.errors import InputError, NonFiniteError, kind
from polysem.inspection.gallery import Gallery

Side = Literal["image", "text"]


@dataclass(frozen=True, eq=False)
class Points:
    """Items of one side.

    vectors: (n, K, D) array or tensor. ids: what each item is called. texts: what a reader is shown of it, the id if
    not given. labels: of each item, empty if it has none. partners: items with the same partner belong together, as an
    image and its captions do; the id if not given.
    """

    vectors: Any
    side: Side
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
            given = getattr(self, name)
            if len(given) != len(vectors) and (given or name == "ids"):
                raise InputError(f"{len(vectors)} {self.side} items need as many {name}, got {len(given)}.")
        if not bool(torch.isfinite(vectors).all()):
            raise NonFiniteError(
                f"Vectors of {self.side}s hold NaN or infinity, and have no place on a map. Look for damaged features, "
                "or for a training run that diverged."
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tensor(self) -> Tensor:
        return torch.as_tensor(self.vectors)

    @property
    def elements(self) -> int:
        return len(self.ids) * int(self.tensor.shape[1])

    def some(self, rows: Sequence[int]) -> Points:
        """The items at these positions."""

        def taken(given: Sequence[Any]) -> list[Any]:
            return [given[row] for row in rows] if given else []

        vectors = self.tensor[torch.tensor(rows, dtype=torch.long)]
        return Points(vectors, self.side, taken(self.ids), taken(self.texts), taken(self.labels), taken(self.partners))


def points_of(gallery: Gallery) -> list[Points]:
    """The images and the captions of a collection, as a model sees them."""
    items, found = gallery.items, gallery.embeddings
    owners = [items[owner] for owner in items.caption_items.tolist()]
    numbers = [number for item in items for number in range(len(item.captions))]
    return [
        Points(
            found.images,
            "image",
            [item.id for item in items],
            [item.captions[0] if item.captions else item.id for item in items],
            [item.labels for item in items],
            [item.id for item in items],
        ),
        Points(
            found.texts,
            "text",
            [f"{item.id}#{number}" for item, number in zip(owners, numbers, strict=True)],
            items.captions,
            [item.labels for item in owners],
            [item.id for item in owners],
        ),
    ]
