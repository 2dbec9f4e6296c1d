"""The inputs of the towers: stored features, features of the data set itself, pixels, or tokens; augmented by item.

Every random draw is a function of seed, epoch and item, so that a resumed run loads the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polysem import distributed
from polysem.data.augmentation import drop_grid_cells, drop_regions, item_rng, mask_words
from polysem.data.batching import Batch, Batches, Places
from polysem.data.collection import Collection
from polysem.encoders import Tokens, caption_keys
from polysem.errors import ConfigError
from polysem.models import Model
from polysem.models.embedding import ImageItems, Items, SentenceItems, collection_images, collection_texts
from polysem.models.tower import Inputs
from polysem.recipes import Recipe, TowerRecipe
from polysem.training.distillation import TeacherScores
from polysem.training.feature_cache import Stores
from polysem.training.masked_modelling import MaskedTokens, TokenMasker
from polysem.training.phrases import join_phrases

PREFETCH = 2
"""Batches made ready while one trains."""


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """A process's share of a batch, ready for its towers.

    Args:
        image_keep, text_keep: (B, N), False where size augmentation drops a token.
        positives: (I, T) bool, of the whole batch.
        sizes: images and captions of each process.
        labels: of the images and of the captions of the whole batch, (I, C) and (T, C).
        masked: tokens for the model to predict.
        teacher_scores: (I, captions), of the whole batch.
        phrases: (T,) bool, which of the texts of the whole batch are phrases; None where there are none.
    """

    images: Inputs
    texts: Inputs
    image_keep: Tensor | None
    text_keep: Tensor | None
    positives: Tensor
    sizes: tuple[list[int], list[int]]
    labels: tuple[Tensor, Tensor] | None = None
    masked: MaskedTokens | None = None
    teacher_scores: Tensor | None = None
    phrases: Tensor | None = None


class InputSource:
    """Inputs of one side by position: items for images, captions for texts. keys: names what augmentation draws for.
    Items behind the last key, which are phrases, stay as they are: without its noun a phrase says nothing."""

    def __init__(self, items: Items[Any], keys: Sequence[str], side: TowerRecipe, seed: int) -> None:
        self.items, self.keys, self.side, self.seed = items, keys, side, seed
        self.readers = ThreadPoolExecutor(max(2, torch.get_num_threads()), thread_name_prefix="readers")

    def load(self, places: Places, epoch: int) -> Inputs:
        """The inputs, augmented for that epoch. Pictures and videos are read by several threads."""
        items, augment = self.items, self.side.augment
        if isinstance(items, ImageItems):

            def read(place: int) -> Tensor:
                if not augment.pixels:
                    return items.load(place)
                seed = int(self.rng(place, epoch).integers(2**62))
                return items.load(place, torch.Generator().manual_seed(seed))

            return items.collate(list(self.readers.map(read, places.tolist())))
        if isinstance(items, SentenceItems) and augment.words:
            words_of_texts = items.encoder.tokenize_words([items.load(place) for place in places.tolist()])
            knobs = items.encoder.mask_id, items.encoder.vocab_size, augment.rate, augment.protect_ends

            def mask(place: int, words: Sequence[Sequence[int]]) -> list[int]:
                if place >= len(self.keys):
                    return [token for word in words for token in word]
                return mask_words(words, self.rng(place, epoch), *knobs)

            return Tokens.from_lists([mask(*pair) for pair in zip(places.tolist(), words_of_texts, strict=True)])
        return items.batch(places.tolist())

    def keep(self, inputs: Inputs, places: Places, epoch: int) -> Tensor | None:
        """(B, N) bool: which tokens stay in this epoch; None if all."""
        if self.side.augment.drop == "none":
            return None
        rule = drop_regions if self.side.augment.drop == "region" else drop_grid_cells
        if isinstance(self.items, ImageItems):
            lengths = [self.items.encoder.tokens_per_item] * len(places)
        else:
            lengths = inputs.mask.sum(1).tolist()  # type: ignore[union-attr]
        kept = np.zeros((len(places), max(lengths)), bool)
        for row, (place, length) in enumerate(zip(places.tolist(), lengths, strict=True)):
            whole = place >= len(self.keys)
            kept[row, range(length) if whole else rule(length, self.rng(place, epoch), self.side.augment.rate)] = True
        return torch.from_numpy(kept)

    def rng(self, place: int, epoch: int) -> np.random.Generator:
        """The random numbers of an item in an epoch."""
        return item_rng(self.seed, epoch, self.keys[place])


def build_sources(
    model: Model, collection: Collection, stores: Stores, recipe: Recipe, phrases: Sequence[str] = ()
) -> tuple[InputSource, InputSource]:
    """The images and captions of a collection; their features, where a store is given or the collection holds them.
    phrases: texts that follow the captions."""
    images = collection_images(model.image.encoder, collection, stores[0])
    texts = collection_texts(model.text.encoder, collection, stores[1])
    ids, captions, seed = [item.id for item in collection], caption_keys(collection), recipe.training.seed
    if phrases:
        texts = join_phrases(model.text.encoder, texts, phrases)
    return InputSource(images, ids, recipe.image, seed), InputSource(texts, captions, recipe.text, seed)


class BatchLoader:
    """The batches of an epoch, each made ready in the background while the one before it trains. labels: (items,
    classes) of the collection, for an objective that learns them."""

    def __init__(
        self,
        model: Model,
        images: InputSource,
        texts: InputSource,
        batches: Batches,
        labels: Tensor | None = None,
        masker: TokenMasker | None = None,
    ) -> None:
        self.model, self.images, self.texts, self.batches = model, images, texts, batches
        self.labels, self.masker = labels, masker
        self.rank, self.world_size = distributed.rank(), distributed.world_size()
        self.teacher: TeacherScores | None = None
        """Of distillation; set before the first batch."""
        smallest = min(batches.batch, len(batches.collection)) // 2  # a visit may end with half a batch
        if self.world_size > 1 and smallest < self.world_size:
            raise ConfigError(
                f"training.batch={batches.batch} on {len(batches.collection)} images is too small for "
                f"{self.world_size} processes: a share would be empty. Raise it, or use fewer processes."
            )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[TrainingBatch]:
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as background:
            waiting: list[Any] = []
            try:
                for batch in self.batches.epoch(epoch, start):
                    waiting.append(background.submit(self.load, batch, epoch))
                    if len(waiting) > PREFETCH:
                        yield waiting.pop(0).result()
                while waiting:
                    yield waiting.pop(0).result()
            finally:
                for future in waiting:
                    future.cancel()

    def load(self, batch: Batch, epoch: int) -> TrainingBatch:
        """This process's share of a batch, on its device."""
        shares = [batch.share(rank, self.world_size) for rank in range(self.world_size)]
        rows, columns = shares[self.rank]
        pictures, captions = batch.images[rows], batch.captions[columns]
        images, texts = self.images.load(pictures, epoch), self.texts.load(captions, epoch)
        image_keep = self.images.keep(images, pictures, epoch)
        text_keep = self.texts.keep(texts, captions, epoch)
        masked = None
        if self.masker is not None:
            image_keys = [self.images.keys[place] for place in pictures.tolist()]
            text_keys = [self.texts.keys[place] for place in captions.tolist()]
            texts, masked = self.masker.mask(images, image_keys, texts, captions, text_keys, epoch)
            masked = masked.restrict(image_keep, text_keep)
        device, labels = self.model.device, None
        if self.labels is not None:  # a caption has those of the image it came with
            of_images = self.labels[torch.from_numpy(batch.images)].to(device)
            labels = of_images, of_images[torch.from_numpy(batch.owner_rows).to(device)]
        return TrainingBatch(
            images.to(device),
            texts.to(device),
            None if image_keep is None else image_keep.to(device),
            None if text_keep is None else text_keep.to(device),
            torch.from_numpy(batch.positives).to(device),
            ([s.stop - s.start for s, _ in shares], [s.stop - s.start for _, s in shares]),
            labels,
            None if masked is None else masked.to(device),
            self._ask_teacher(batch),
            None if batch.phrases is None else torch.from_numpy(batch.phrases).to(device),
        )

    def _ask_teacher(self, batch: Batch) -> Tensor | None:
        """(I, captions): the teacher's scores, phrases left out."""
        if self.teacher is None:
            return None
        captions = batch.captions if batch.phrases is None else batch.captions[~batch.phrases]
        return self.teacher.scores(batch.images, captions).to(self.model.device)
