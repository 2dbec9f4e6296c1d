"""What the towers eat: features from a store, features of the data set itself, pixels, or tokens; augmented by item.

Every random draw is a function of seed, epoch and item, so that a resumed run is fed the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from polysem.data.augmentation import draws, grid_drop, region_drop, word_mask
from polysem.data.batching import Batch, Batches, Places
from polysem.data.collection import Collection
from polysem.data.feature_files import load_features
from polysem.data.store import FeatureStore
from polysem.encoders import PixelEncoder, TextEncoder, Tokens
from polysem.errors import ConfigError
from polysem.features import LocalFeatures
from polysem.models import Model, Tower
from polysem.models.embedding import move
from polysem.models.tower import Inputs
from polysem.recipes import Side
from polysem.training.blanks import Blanking, Blanks
from polysem.training.distillation import Teaching

AHEAD = 2
"""Batches made ready while one trains."""


@dataclass(frozen=True, eq=False)
class Fed:
    """A process's share of a batch, ready for its towers.

    keep: (B, N), False where size augmentation drops a token. positives: of the whole batch. sizes: images and
    captions of each process. labels: of the images and of the captions of the whole batch, (I, C) and (T, C). blanks:
    what is hidden, for the model to guess. taught: a teacher's scores of the whole batch, (I, T).
    """

    images: Inputs
    texts: Inputs
    image_keep: Tensor | None
    text_keep: Tensor | None
    positives: Tensor
    sizes: tuple[list[int], list[int]]
    labels: tuple[Tensor, Tensor] | None = None
    blanks: Blanks | None = None
    taught: Tensor | None = None


class Source(ABC):
    """Inputs of one side by place: items for images, captions for texts."""

    def __init__(self, keys: Callable[[int], str], side: Side, seed: int) -> None:
        self.keys, self.side, self.seed = keys, side, seed

    @abstractmethod
    def load(self, places: Places, epoch: int | None) -> Inputs:
        """epoch: None for inputs as they are, else augmented for that epoch."""

    def keep(self, inputs: Inputs, places: Places, epoch: int, tokens: int | None = None) -> Tensor | None:
        """(B, N) bool: which tokens stay in this epoch; None if all. tokens: N, where the inputs do not show it."""
        if self.side.augment.drop == "none":
            return None
        rule = region_drop if self.side.augment.drop == "region" else grid_drop
        lengths = inputs.mask.sum(1).tolist() if not isinstance(inputs, Tensor) else [tokens] * len(inputs)
        kept = np.zeros((len(places), max(lengths)), bool)
        for row, (place, length) in enumerate(zip(places.tolist(), lengths, strict=True)):
            kept[row, rule(length, self.draws(place, epoch), self.side.augment.rate)] = True
        return torch.from_numpy(kept)

    def draws(self, place: int, epoch: int) -> np.random.Generator:
        return draws(self.seed, epoch, self.keys(place))


class Stored(Source):
    """Features that a frozen encoder made once."""

    def __init__(self, store: FeatureStore, ids: list[str], side: Side, seed: int) -> None:
        super().__init__(ids.__getitem__, side, seed)
        self.store, self.positions = store, store.positions(ids)

    def load(self, places: Places, epoch: int | None) -> Inputs:
        return self.store.batch(self.positions[places])


class Precomputed(Source):
    """Features that are the data set."""

    def __init__(self, collection: Collection, side: Side, seed: int) -> None:
        super().__init__(lambda place: collection[place].id, side, seed)
        self.collection = collection

    def load(self, places: Places, epoch: int | None) -> Inputs:
        arrays = [load_features(self.collection[place].media) for place in places.tolist()]
        return LocalFeatures.from_list([torch.from_numpy(np.array(array, np.float32)) for array in arrays])


class Pictures(Source):
    """Pixels, of pictures or of videos, read by several threads."""

    def __init__(self, collection: Collection, encoder: PixelEncoder, side: Side, seed: int) -> None:
        super().__init__(lambda place: collection[place].id, side, seed)
        self.collection, self.encoder = collection, encoder
        self.readers = ThreadPoolExecutor(max(2, torch.get_num_threads()), thread_name_prefix="pictures")

    def load(self, places: Places, epoch: int | None) -> Inputs:
        return torch.stack(list(self.readers.map(lambda place: self._pixels(place, epoch), places.tolist())))

    def _pixels(self, place: int, epoch: int | None) -> Tensor:
        path = self.collection[place].media.path
        if epoch is None or not self.side.augment.pixels:
            return self.encoder.read(path)
        luck = int(self.draws(place, epoch).integers(2**62))
        return self.encoder.read(path, torch.Generator().manual_seed(luck))


class Captions(Source):
    """Tokens of captions."""

    def __init__(self, collection: Collection, encoder: TextEncoder, side: Side, seed: int) -> None:
        self.captions = collection.captions
        owners, first = collection.caption_items, np.cumsum([0, *(len(item.captions) for item in collection)])
        super().__init__(lambda n: f"{collection[int(owners[n])].id}#{n - first[owners[n]]}", side, seed)
        self.encoder = encoder

    def load(self, places: Places, epoch: int | None) -> Inputs:
        texts = [self.captions[place] for place in places.tolist()]
        if epoch is None or not self.side.augment.words:
            return self.encoder.tokenize(texts)
        augment, mask = self.side.augment, self.encoder.mask_id
        rows = [
            word_mask(
                words, self.draws(place, epoch), mask, self.encoder.vocab_size, augment.rate, augment.protect_ends
            )
            for place, words in zip(places.tolist(), self.encoder.tokenize_words(texts), strict=True)
        ]
        return Tokens.from_lists(rows)


def caption_ids(collection: Collection) -> list[str]:
    """The key of each caption in a store of their features."""
    return [f"{item.id}#{number}" for item in collection for number in range(len(item.captions))]


def image_source(tower: Tower, collection: Collection, store: FeatureStore | None, side: Side, seed: int) -> Source:
    if store is not None:
        return Stored(store, [item.id for item in collection], side, seed)
    if tower.encoder.takes == "features":
        return Precomputed(collection, side, seed)
    return Pictures(collection, cast(PixelEncoder, tower.encoder), side, seed)


def text_source(tower: Tower, collection: Collection, store: FeatureStore | None, side: Side, seed: int) -> Source:
    if store is not None:
        return Stored(store, caption_ids(collection), side, seed)
    return Captions(collection, cast(TextEncoder, tower.encoder), side, seed)


class Feeder:
    """The batches of an epoch, each made ready in the background while the one before it trains.

    labels: (items, classes) of the collection, for an objective that learns them. blanking: hides tokens. teaching: a
    teacher, to be set before the first batch.
    """

    def __init__(
        self,
        model: Model,
        images: Source,
        texts: Source,
        batches: Batches,
        rank: int = 0,
        world_size: int = 1,
        labels: Tensor | None = None,
        blanking: Blanking | None = None,
    ) -> None:
        self.model, self.images, self.texts, self.batches = model, images, texts, batches
        self.rank, self.world_size, self.labels, self.blanking = rank, world_size, labels, blanking
        self.teaching: Teaching | None = None
        smallest = min(batches.batch, len(batches.collection)) // 2  # a visit may end with half a batch
        if world_size > 1 and smallest < world_size:
            raise ConfigError(
                f"training.batch={batches.batch} on {len(batches.collection)} images is too small for {world_size} "
                "processes: a share would be empty. Raise it, or use fewer processes."
            )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Fed]:
        with ThreadPoolExecutor(1, thread_name_prefix="feeder") as background:
            plan = self.batches.epoch(epoch, start)
            waiting: list[Any] = []
            try:
                for batch in plan:
                    waiting.append(background.submit(self.feed, batch, epoch))
                    if len(waiting) > AHEAD:
                        yield waiting.pop(0).result()
                while waiting:
                    yield waiting.pop(0).result()
            finally:
                for future in waiting:
                    future.cancel()

    def feed(self, batch: Batch, epoch: int) -> Fed:
        """This process's share of a batch, on its device."""
        shares = [batch.share(rank, self.world_size) for rank in range(self.world_size)]
        rows, columns = shares[self.rank]
        pictures, captions = batch.images[rows], batch.captions[columns]
        images, texts = self.images.load(pictures, epoch), self.texts.load(captions, epoch)
        tokens = self.images.encoder.tokens_per_item if isinstance(self.images, Pictures) else None
        image_keep = self.images.keep(images, pictures, epoch, tokens)
        text_keep = self.texts.keep(texts, captions, epoch)
        blanks = None
        if self.blanking is not None:
            image_keys, text_keys = (
                [source.keys(place) for place in places.tolist()]
                for source, places in ((self.images, pictures), (self.texts, captions))
            )
            texts, blanks = self.blanking.hide(images, image_keys, texts, captions, text_keys, epoch)
            blanks = blanks.among(image_keep, text_keep)
        device = self.model.device
        return Fed(
            move(images, device),
            move(texts, device),
            None if image_keep is None else image_keep.to(device),
            None if text_keep is None else text_keep.to(device),
            torch.from_numpy(batch.positives).to(device),
            ([s.stop - s.start for s, _ in shares], [s.stop - s.start for _, s in shares]),
            self._labels(batch, device),
            None if blanks is None else blanks.to(device),
            None if self.teaching is None else self.teaching.scores(batch.images, batch.captions).to(device),
        )

    def _labels(self, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Of images and of captions: a caption has those of the image it came with."""
        if self.labels is None:
            return None
        of_images = self.labels[torch.from_numpy(batch.images)].to(device)
        return of_images, of_images[torch.from_numpy(batch.owner_rows).to(device)]
