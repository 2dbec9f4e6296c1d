"""Which images and captions meet in which batch, and which of them match: a function of seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polysem.data.collection import Collection, normalise_caption
from polysem.errors import ConfigError, InputError

Captions = Literal["one", "all"] | int
Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Images and captions of one training step, and which of them match.

    Args:
        images: positions in the collection.
        captions: positions in `collection.captions`, image by image; from its end on they are phrases, each behind the
            captions of the image that brought it.
        positives: (images, captions) bool, True where a caption says something true of an image.
        owner_rows: for each caption, the row of the image it came with.
        phrases: (captions,) bool, which of them are phrases; None where there are none.
    """

    images: Places
    captions: Places
    positives: NDArray[np.bool_]
    owner_rows: Places
    phrases: NDArray[np.bool_] | None = None

    def share(self, rank: int, world_size: int) -> tuple[slice, slice]:
        """Which rows and columns of the batch belong to one of several processes: whole images with their captions."""
        bounds = np.linspace(0, len(self.images), world_size + 1).astype(int)
        first, last = int(bounds[rank]), int(bounds[rank + 1])
        columns = np.searchsorted(self.owner_rows, [first, last])
        return slice(first, last), slice(int(columns[0]), int(columns[1]))


class Batches:
    """Sampler of batches by image. Images that share a caption are never each other's negatives through it.

    The last batch of a visit is dropped if it is short, unless it is the only one.

    Args:
        batch: images in a batch.
        captions: "all" of an image; or so many at a time ("one" is 1), in which case an epoch visits the images several
            times, until it has seen every caption once.
        phrases: further texts, each by the positions of the images of which it is true. Every image of a batch draws
            one of its own; none comes twice in a batch.
    """

    def __init__(
        self,
        collection: Collection,
        batch: int,
        captions: Captions = "all",
        seed: int = 0,
        phrases: Sequence[Sequence[int]] = (),
    ) -> None:
        self.collection, self.batch, self.seed = collection, batch, seed
        counts = np.array([len(item.captions) for item in collection], np.int64)
        if not len(counts) or not counts.any():
            raise InputError(f"{collection.name} has no captions to train with. `polysem data check` says what it has.")
        self.first = np.concatenate([[0], np.cumsum(counts)])
        self.counts = counts
        self.per_visit = int(counts.max()) if captions == "all" else 1 if captions == "one" else int(captions)
        if self.per_visit < 1:
            raise ConfigError(f"captions must be 'one', 'all' or a positive number, got {captions!r}.")
        self.owners = collection.caption_items
        # For each caption whose text another image has too: all images that have it.
        images: dict[str, set[int]] = {}
        texts = [normalise_caption(caption) for caption in collection.captions]
        for text, owner in zip(texts, self.owners.tolist(), strict=True):
            images.setdefault(text, set()).add(owner)
        self._shared = {number: sorted(images[text]) for number, text in enumerate(texts) if len(images[text]) > 1}
        self._phrases: list[list[int]] = [[] for _ in collection]
        for number, items in enumerate(phrases, len(texts)):
            for item in items:
                self._phrases[item].append(number)
        self._has_phrases = bool(phrases)
        sizes = [int((counts > taken).sum()) for taken in range(0, int(counts.max()), self.per_visit)]
        # A visit too small for a batch still makes one if it is at least half of the usual: a few images that have one
        # caption more than the rest would be a batch without negatives.
        usual = min(batch, sizes[0])
        self._batches_of_visit = [size // batch or int(2 * size >= max(usual, 4)) for size in sizes]
        self._batches_of_visit[0] = max(1, self._batches_of_visit[0])
        if sizes[0] < 2:
            raise InputError(f"{collection.name} has {sizes[0]} image with captions; training needs at least two.")

    def __len__(self) -> int:
        """Batches of an epoch."""
        return sum(self._batches_of_visit)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch in order, from number `start` on."""
        draws = np.random.default_rng([self.seed, epoch, 0xBA7C4])
        # Each image's captions in an order of their own: sort by image, then at random.
        shuffled = np.lexsort((draws.random(len(self.owners)), self.owners))
        number = 0
        for visit, count in enumerate(self._batches_of_visit):
            if not count:
                continue
            taken = visit * self.per_visit
            order = draws.permutation(np.flatnonzero(self.counts > taken))
            for images in np.array_split(order[: count * self.batch], count):
                if number >= start:
                    starts = self.first[images] + taken
                    ends = np.minimum(starts + self.per_visit, self.first[images + 1])
                    spans = [shuffled[a:b] for a, b in zip(starts, ends, strict=True)]
                    if self._has_phrases:
                        drawn = self._draw_phrases(images, np.random.default_rng([self.seed, epoch, number, 0xF4A5E]))
                        spans = [np.append(span, own) for span, own in zip(spans, drawn, strict=True)]
                    yield self._assemble(images, spans)
                number += 1

    def _draw_phrases(self, images: Places, draws: np.random.Generator) -> list[Places]:
        """Of each image one phrase, by its position, or none where it has none or another image drew the same."""
        drawn: list[Places] = []
        taken: set[int] = set()
        for image in images.tolist():
            own = self._phrases[image]
            chosen = {own[int(draws.integers(len(own)))]} - taken if own else set()
            taken |= chosen
            drawn.append(np.array(sorted(chosen), np.int64))
        return drawn

    def _assemble(self, images: Places, spans: list[Places]) -> Batch:
        """A batch of these images with these captions of each."""
        captions = np.concatenate(spans)
        rows = np.repeat(np.arange(len(images)), [len(span) for span in spans])
        positives = np.zeros((len(images), len(captions)), bool)
        positives[rows, np.arange(len(captions))] = True
        row_of = {int(image): row for row, image in enumerate(images)}
        for column, caption in enumerate(captions.tolist()):
            for image in self._shared.get(caption, ()):
                if image in row_of:
                    positives[row_of[image], column] = True
        if self._has_phrases:
            column_of = {caption: column for column, caption in enumerate(captions.tolist())}
            for row, image in enumerate(images.tolist()):
                positives[row, [column_of[phrase] for phrase in self._phrases[image] if phrase in column_of]] = True
        return Batch(images, captions, positives, rows, captions >= len(self.owners) if self._has_phrases else None)
