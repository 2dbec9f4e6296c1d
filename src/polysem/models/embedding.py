"""From items to vectors: the one path by which validation, evaluation, search and inspection embed what they are given.

`Items` says what there is and how it is loaded (images, videos, features, texts), `embed` runs it through a tower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polysem import cpu_blocks
from polysem.data.collection import Collection, Media, load_features
from polysem.data.store import FeatureStore
from polysem.encoders import Encoder, PixelEncoder, TextEncoder, Tokens, caption_keys
from polysem.encoders.base import eval_mode
from polysem.encoders.pipeline import encode_windows, windows
from polysem.errors import InputError, kind
from polysem.features import LocalFeatures
from polysem.models.tower import Inputs, Tower
from polysem.progress import Progress

T = TypeVar("T")
ModelOutput = Tensor | list[Any]
Forward = Callable[[Tower, Inputs], tuple[ModelOutput, ...]]
"""What to compute of a batch: tensors or lists with a row for each item."""


class Items(ABC, Generic[T]):
    """A list of items: `load` reads one, `collate` makes a tower's inputs of several that were loaded."""

    reads_files = False
    """Whether loading waits for files or decodes them, so that threads are worth starting."""
    images_per_item = 1

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def load(self, row: int) -> T:
        """One item. Raises `InputError` if it cannot be read."""
        return cast(T, self.values[row])

    @abstractmethod
    def collate(self, items: list[T]) -> Inputs:
        """The inputs of a batch of loaded items, all of one `group`."""

    def group(self, item: T) -> Hashable:
        """What loaded items must have in common to be collated; None where padding takes care of it."""
        return None

    @property
    def order(self) -> Sequence[int]:
        """The rows as they are best batched."""
        return range(len(self))

    def readers(self) -> AbstractContextManager[Executor | None]:
        """Threads that load, where they are worth it."""
        if self.reads_files and len(self) > 1:
            return ThreadPoolExecutor(max(2, torch.get_num_threads()), thread_name_prefix="readers")
        return nullcontext()

    def batch(self, rows: Sequence[int]) -> Inputs:
        """The inputs of these rows, all of one `group`."""
        return self.collate([self.load(row) for row in rows])

    def batches(self, size: int) -> Iterator[Inputs]:
        """The inputs of all items, so many at a time, in their order."""
        return (self.batch(rows) for rows in windows(range(len(self)), size))


class ImageItems(Items[Tensor]):
    """Images or videos for an encoder of pixels, each a path or a PIL image."""

    def __init__(self, encoder: Encoder, images: Sequence[Any]) -> None:
        super().__init__(images)
        self.encoder = cast(PixelEncoder, encoder)
        self.images_per_item = self.encoder.pictures_per_item
        # A PIL image may load its pixels when they are asked for, which is not safe in several threads.
        self.reads_files = all(isinstance(image, (str, Path)) for image in images)

    def load(self, row: int, generator: torch.Generator | None = None) -> Tensor:
        """The pixels of one item. generator: draws an augmentation of a file, for training."""
        image = self.values[row]
        if isinstance(image, (str, Path)):
            return self.encoder.read(Path(image).expanduser(), generator)
        if isinstance(image, Image.Image):
            return self.encoder.preprocess(image)
        raise InputError(f"Image number {row}: give a path or a PIL image, got {kind(image)}.")

    def collate(self, items: list[Tensor]) -> Tensor:
        return torch.stack(items)

    def group(self, item: Tensor) -> Hashable:
        return tuple(item.shape)  # an image among videos is a video of one frame


class FeatureItems(Items[Tensor]):
    """Precomputed features: (tokens, dim) arrays, or where to find them on disk."""

    def load(self, row: int) -> Tensor:
        item = self.values[row]
        if isinstance(item, Media):
            return torch.from_numpy(np.array(load_features(item), np.float32))
        if not isinstance(item, (str, Path, Image.Image)):
            features = item if isinstance(item, Tensor) else torch.as_tensor(np.asarray(item))
            if features.ndim == 2 and features.is_floating_point():
                return features.float()
        raise InputError(
            f"Image number {row}: this model takes precomputed features, a (tokens, dim) array per image, made by the "
            f"extractor of the data it was trained on; got {item if isinstance(item, (str, Path)) else kind(item)}."
        )

    def collate(self, items: list[Tensor]) -> LocalFeatures:
        return LocalFeatures.from_list(items)


class BatchItems(Items[int]):
    """Features that are in memory as one `LocalFeatures`."""

    def load(self, row: int) -> int:
        return row

    def collate(self, items: list[int]) -> LocalFeatures:
        rows = slice(items[0], items[-1] + 1) if items[-1] - items[0] == len(items) - 1 else items
        summary = None if self.values.summary is None else self.values.summary[rows]
        return LocalFeatures(self.values.values[rows], self.values.mask[rows], summary)


class StoredItems(Items[int]):
    """Features that an encoder made earlier, in a `FeatureStore`.

    complete: raise at once if keys are missing; otherwise each is missed when it is loaded.
    """

    def __init__(self, store: FeatureStore, keys: Sequence[str], *, complete: bool = True) -> None:
        super().__init__(keys)
        self.store, self.positions = store, store.positions(keys) if complete else None

    def load(self, row: int) -> int:
        return int(self.store.positions([self.values[row]])[0] if self.positions is None else self.positions[row])

    def collate(self, items: list[int]) -> LocalFeatures:
        return self.store.batch(items)


class SentenceItems(Items[str]):
    """Texts, tokenised batch by batch."""

    def __init__(self, encoder: Encoder, texts: Sequence[str]) -> None:
        super().__init__(texts)
        self.encoder = cast(TextEncoder, encoder)

    def collate(self, items: list[str]) -> Tokens:
        return self.encoder.tokenize(items)


class TokenItems(Items[list[int]]):
    """Tokenised texts, batched by length: padding is computed too."""

    @property
    def order(self) -> Sequence[int]:
        return sorted(range(len(self)), key=lambda row: len(self.values[row]))

    def collate(self, items: list[list[int]]) -> Tokens:
        return Tokens.from_lists(items)


def image_items(encoder: Encoder, images: Any) -> Items[Any]:
    """Images as a user gives them: a list of paths or PIL images; of (tokens, dim) arrays; or `LocalFeatures`."""
    if isinstance(images, LocalFeatures):
        return BatchItems(images)
    _check_list(images, "images")
    if encoder.takes == "features" or (isinstance(images[0], (np.ndarray, Tensor)) and images[0].ndim == 2):
        return FeatureItems(images)
    return ImageItems(encoder, images)


def text_items(encoder: Encoder, texts: Any, *, by_length: bool = True) -> Items[Any]:
    """Texts as a user gives them: a list of sentences or of lists of token ids; `Tokens`; or `LocalFeatures`.

    by_length: batch texts of like length together.
    """
    if isinstance(texts, LocalFeatures):
        return BatchItems(texts)
    _check_list(texts, "texts")
    if not isinstance(texts, Tokens):
        if not isinstance(texts[0], str):
            return TokenItems([[int(token) for token in row] for row in texts])
        if not by_length:
            return SentenceItems(encoder, texts)
        texts = cast(TextEncoder, encoder).tokenize(texts)
    return TokenItems([row[mask].tolist() for row, mask in zip(texts.ids, texts.mask, strict=True)])


def collection_images(encoder: Encoder, collection: Collection, store: FeatureStore | None = None) -> Items[Any]:
    """The images, videos or features of a collection; of its store, where one is given."""
    if store is not None:
        return StoredItems(store, [item.id for item in collection])
    if collection.content == "features":
        return FeatureItems([item.media for item in collection])
    if encoder.takes == "features":
        raise InputError(
            f"This model reads features of width {encoder.config.get('input_dim')}, and {collection.name} holds "
            f"{collection.content}. Extract the features with `polysem features`, and give --features."
        )
    return ImageItems(encoder, [item.media.path for item in collection])


def collection_texts(
    encoder: Encoder, collection: Collection, store: FeatureStore | None = None, *, by_length: bool = False
) -> Items[Any]:
    """The captions of a collection; of the store of their features, where one is given."""
    if store is not None:
        return StoredItems(store, caption_keys(collection))
    return text_items(encoder, collection.captions, by_length=by_length)


def open_store(folder: str | Path | None, tower: Tower) -> FeatureStore | None:
    """The store of the features of a tower's encoder. Raises if another encoder made them."""
    if folder is None:
        return None
    store = FeatureStore.open(folder)
    expected = tower.encoder.fingerprint()
    if tower.encoder.takes != "features" and store.fingerprint != expected:
        raise InputError(
            f"The features in {folder} were made by another encoder (fingerprint {store.fingerprint[:12]}) than this "
            f"model's ({tower.encoder.config['name']}, {expected[:12]}). Leave the option out, or extract them again."
        )
    return store


def _check_list(items: Any, what: str) -> None:
    if isinstance(items, (str, Path)) or not isinstance(items, (Sequence, np.ndarray, Tensor, Tokens)):
        raise InputError(f"Expected a list of {what}, got {kind(items)}. Put a single one in brackets.")
    if len(items) == 0:
        raise InputError(f"Nothing to encode: the list of {what} is empty.")


def embed_vectors(tower: Tower, inputs: Inputs) -> tuple[Tensor]:
    """(B, K, D): the items' sets."""
    return (tower(inputs).vectors,)


def embed_probabilities(tower: Tower, inputs: Inputs) -> tuple[Tensor, ...]:
    """(B, C): how probable each class is."""
    return embed_both(tower, inputs)[1:]


def embed_both(tower: Tower, inputs: Inputs) -> tuple[Tensor, ...]:
    """(B, K, D) and (B, C), in one pass."""
    prediction = tower(inputs)
    if prediction.logits is None:
        name = tower.sets.config["name"]
        raise InputError(f"{name!r} knows no classes. Train a model that does: `polysem train small-semantic-sharing`.")
    return prediction.vectors, tower.sets.probabilities(prediction.logits)


def embed(
    tower: Tower,
    items: Items[Any],
    batch_size: int,
    forward: Forward = embed_vectors,
    *,
    block: int | None = None,
    progress: Progress | None = None,
    on_skip: Callable[[int, InputError], None] | None = None,
) -> tuple[Any, ...]:
    """Embed items in batches, in evaluation mode and without gradients.

    Args:
        batch_size: images, features or texts in memory together; videos are fewer by the frames they have.
        forward: what to compute of a batch.
        block: cut batches of pixels into blocks of so many and encode each on a thread, on the CPU.
        progress: called with "encoding", the items that are done, and all of them.
        on_skip: called with the row of an item that cannot be read, and the reason; without it, that is an error.

    Returns:
        What `forward` gives, on the CPU, with a row for each item that was not skipped, in the items' order. Nothing if
        all were skipped.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    device = next(tower.parameters()).device
    count, size = len(items), max(1, batch_size // items.images_per_item)
    if not isinstance(items, ImageItems) or device.type != "cpu":
        block = None
    columns: list[Any] = []
    kept = torch.ones(count, dtype=torch.bool)
    done = 0

    def run(_: list[int], loaded: list[Any]) -> tuple[Any, ...]:
        return _forward(tower, items.collate(loaded).to(device), forward)

    with eval_mode(tower), items.readers() as readers:
        for rows, result in encode_windows(
            windows(items.order, size),
            items.load,
            run,
            block or size,
            group=items.group,
            readers=readers,
            encoders=cpu_blocks.shared_pool(device) if block else None,
            ahead=size if block else 0,  # no thread waits for the last block of a window
        ):
            if isinstance(result, InputError):
                if on_skip is None:
                    raise result
                on_skip(rows[0], result)
                kept[rows] = False
            else:
                # Made here, not in `run`: tensors made in inference mode cannot take part in training.
                columns = columns or [
                    torch.empty(count, *p.shape[1:]) if isinstance(p, Tensor) else [None] * count for p in result
                ]
                for column, part in zip(columns, result, strict=True):
                    if isinstance(column, Tensor):
                        column[rows] = part
                        continue
                    for row, value in zip(rows, part, strict=True):
                        column[row] = value
            done += len(rows)
            if progress is not None:
                progress("encoding", done, count)
    if bool(kept.all()):
        return tuple(columns)
    rows = kept.nonzero().flatten().tolist()
    return tuple(c[rows] if isinstance(c, Tensor) else [c[row] for row in rows] for c in columns)


def embed_batch(tower: Tower, inputs: Inputs, forward: Forward = embed_vectors) -> tuple[Any, ...]:
    """What `forward` gives of one batch of a tower's inputs, on the CPU, in evaluation mode and without gradients."""
    with eval_mode(tower):
        return _forward(tower, inputs.to(next(tower.parameters()).device), forward)


def _forward(tower: Tower, inputs: Inputs, forward: Forward) -> tuple[ModelOutput, ...]:
    with torch.inference_mode():
        columns = forward(tower, inputs)
        return tuple(column.float().cpu() if isinstance(column, Tensor) else column for column in columns)
