"""What the towers eat: features from a store, features of the data set itself, pixels, or tokens; augmented by item.

Every random draw is a function of seed, epoch and item, so that a resumed run is fed the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polysem.data.augmentation import grid_drop, item_rng, region_drop, word_mask
from polysem.data.batching import Batch, Batches, Places
from polysem.data.collection import Collection
from polysem.data.store import FeatureStore
from polysem.encoders import Tokens, caption_keys
from polysem.errors import ConfigError
from polysem.models import Model, Tower
from polysem.models.embedding import move
from polysem.models.items import ImageItems, Items, SentenceItems, collection_images, collection_texts
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


class Source:
    """Inputs of one side by position: items for images, captions for texts. keys: names what augmentation draws for."""

    def __init__(self, items: Items[Any], keys: Callable[[int], str], side: Side, seed: int) -> None:
        self.items, self.keys, self.side, self.seed = items, keys, side, seed

    def load(self, places: Places, epoch: int) -> Inputs:
        """The inputs, augmented for that epoch."""
        return self.items.batch(places.tolist())

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
        return item_rng(self.seed, epoch, self.keys(place))


class Pictures(Source):
    """Pixels, of pictures or of videos, read by several threads."""

    items: ImageItems

    def __init__(self, items: ImageItems, keys: Callable[[int], str], side: Side, seed: int) -> None:
        super().__init__(items, keys, side, seed)
        self.readers = ThreadPoolExecutor(max(2, torch.get_num_threads()), thread_name_prefix="readers")

    def load(self, places: Places, epoch: int) -> Inputs:
        return self.items.collate(list(self.readers.map(lambda place: self._pixels(place, epoch), places.tolist())))

    def _pixels(self, place: int, epoch: int) -> Tensor:
        if not self.side.augment.pixels:
            return self.items.load(place)
        seed = int(self.draws(place, epoch).integers(2**62))
        return self.items.load(place, torch.Generator().manual_seed(seed))


class Captions(Source):
    """Tokens of captions, of which augmentation hides or deletes words."""

    items: SentenceItems

    def load(self, places: Places, epoch: int) -> Inputs:
        augment, encoder = self.side.augment, self.items.encoder
        if not augment.words:
            return super().load(places, epoch)
        words_of_texts = encoder.tokenize_words([self.items.texts[place] for place in places.tolist()])
        rows = [
            word_mask(
                words, self.draws(place, epoch), encoder.mask_id, encoder.vocab_size, augment.rate, augment.protect_ends
            )
            for place, words in zip(places.tolist(), words_of_texts, strict=True)
        ]
        return Tokens.from_lists(rows)


def image_source(tower: Tower, collection: Collection, store: FeatureStore | None, side: Side, seed: int) -> Source:
    """The images of a collection; their features, where a store is given or the collection holds them."""
    items = collection_images(tower.encoder, collection, store)
    keys = [item.id for item in collection].__getitem__
    return Pictures(items, keys, side, seed) if isinstance(items, ImageItems) else Source(items, keys, side, seed)


def text_source(tower: Tower, collection: Collection, store: FeatureStore | None, side: Side, seed: int) -> Source:
    """The captions of a collection; their features, where a store is given."""
    items = collection_texts(tower.encoder, collection, store)
    source = Captions if isinstance(items, SentenceItems) else Source
    return source(items, caption_keys(collection).__getitem__, side, seed)


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
        tokens = self.images.items.encoder.tokens_per_item if isinstance(self.images, Pictures) else None
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
