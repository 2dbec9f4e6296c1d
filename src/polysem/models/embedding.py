"""Many items through one tower: in batches, without gradients, in the order given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polysem.encoders import PixelEncoder, TextEncoder, Tokens
from polysem.errors import InputError, kind
from polysem.features import LocalFeatures
from polysem.models.tower import Inputs, Tower
from polysem.sets import SetPrediction

Progress = Callable[[int, int], None]
Reading = Callable[[Tower, SetPrediction], tuple[Tensor, ...]]
"""What to take from a prediction: tensors with a row for each item."""


def vectors(_: Tower, prediction: SetPrediction) -> tuple[Tensor, ...]:
    """(B, K, D)."""
    return (prediction.vectors,)


def probabilities(tower: Tower, prediction: SetPrediction) -> tuple[Tensor, ...]:
    """(B, C): of each class."""
    if prediction.logits is None:
        raise InputError(
            f"This model knows no classes: its sets are made by {tower.sets.config['name']!r}. Train one that does, "
            "e.g. `polysem train small-semantic-sharing`."
        )
    return (tower.sets.probabilities(prediction.logits),)


def vectors_and_probabilities(tower: Tower, prediction: SetPrediction) -> tuple[Tensor, ...]:
    """Both, in one pass."""
    return *vectors(tower, prediction), *probabilities(tower, prediction)


def encode_images(
    tower: Tower, images: Any, batch_size: int, progress: Progress | None, read: Reading = vectors
) -> Tensor:
    """What `read` takes first of every image."""
    return read_images(tower, images, batch_size, progress, read)[0]


def read_images(
    tower: Tower, images: Any, batch_size: int, progress: Progress | None, read: Reading
) -> tuple[Tensor, ...]:
    encoder = tower.encoder
    if isinstance(images, LocalFeatures):
        return run(tower, len(images), lambda rows: _rows(images, rows), batch_size, progress, read)
    if isinstance(images, (str, Path, Image.Image)) or not isinstance(images, (Sequence, np.ndarray, Tensor)):
        raise InputError(f"encode_images() takes a list of images, got {kind(images)}. Write encode_images([image]).")
    if encoder.takes == "features":
        features = [_features(item, place) for place, item in enumerate(images)]
        return run(
            tower,
            len(features),
            lambda rows: LocalFeatures.from_list([features[i] for i in rows]),
            batch_size,
            progress,
            read,
        )
    reader = cast(PixelEncoder, encoder)

    def pixels(rows: list[int]) -> Tensor:
        return _stacked([_pixels(reader, images[i], i) for i in rows])

    return run(tower, len(images), pixels, max(1, batch_size // reader.pictures_per_item), progress, read)


def encode_texts(
    tower: Tower, texts: Any, batch_size: int, progress: Progress | None, read: Reading = vectors
) -> Tensor:
    """What `read` takes first of every text."""
    return read_texts(tower, texts, batch_size, progress, read)[0]


def read_texts(
    tower: Tower, texts: Any, batch_size: int = 128, progress: Progress | None = None, read: Reading = vectors
) -> tuple[Tensor, ...]:
    encoder = cast(TextEncoder, tower.encoder)
    if isinstance(texts, LocalFeatures):
        return run(tower, len(texts), lambda rows: _rows(texts, rows), batch_size, progress, read)
    if isinstance(texts, Tokens):
        ids = [row[mask].tolist() for row, mask in zip(texts.ids, texts.mask, strict=True)]
    elif not isinstance(texts, str) and len(texts) and not isinstance(texts[0], str):
        ids = [list(map(int, row)) for row in texts]
    else:
        tokens = encoder.tokenize(texts)
        ids = [row[mask].tolist() for row, mask in zip(tokens.ids, tokens.mask, strict=True)]
    # Texts of like length together: padding is computed too.
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))

    def some(rows: list[int]) -> Tokens:
        return Tokens.from_lists([ids[order[i]] for i in rows])

    encoded = run(tower, len(ids), some, batch_size, progress, read)
    places = torch.tensor(order).argsort()
    return tuple(tensor[places] for tensor in encoded)


def run(
    tower: Tower,
    count: int,
    load: Callable[[list[int]], Inputs],
    batch_size: int,
    progress: Progress | None,
    read: Reading,
) -> tuple[Tensor, ...]:
    """What `read` takes of so many items, batch by batch, in evaluation mode. load: the inputs of these rows."""
    if count == 0:
        raise InputError("Nothing to encode: the list is empty.")
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    training, device = tower.training, next(tower.parameters()).device
    tower.eval()
    found: list[Tensor] = []
    try:
        with torch.inference_mode():
            for first in range(0, count, batch_size):
                rows = list(range(first, min(count, first + batch_size)))
                parts = [part.float().cpu() for part in read(tower, tower(move(load(rows), device)))]
                found = found or [torch.empty(count, *part.shape[1:]) for part in parts]
                for whole, part in zip(found, parts, strict=True):
                    whole[rows[0] : rows[-1] + 1] = part
                if progress is not None:
                    progress(rows[-1] + 1, count)
    finally:
        tower.train(training)
    # Ordinary tensors: those made in inference mode cannot take part in training.
    return tuple(tensor.clone() for tensor in found)


def move(inputs: Inputs, device: torch.device) -> Inputs:
    """The same inputs on another device."""
    if isinstance(inputs, LocalFeatures):
        summary = None if inputs.summary is None else inputs.summary.to(device)
        return LocalFeatures(inputs.values.to(device), inputs.mask.to(device), summary)
    return inputs.to(device)


def _rows(features: LocalFeatures, rows: list[int]) -> LocalFeatures:
    part = slice(rows[0], rows[-1] + 1)
    summary = None if features.summary is None else features.summary[part]
    return LocalFeatures(features.values[part], features.mask[part], summary)


def _features(item: Any, place: int) -> Tensor:
    found = torch.as_tensor(np.asarray(item)) if not isinstance(item, Tensor) else item
    if found.ndim != 2 or not found.is_floating_point():
        raise InputError(
            f"Image number {place}: this model takes precomputed features, a (tokens, dim) array per image; "
            f"got {kind(item)}."
        )
    return found.float()


def _stacked(inputs: list[Tensor]) -> Tensor:
    if len({given.shape for given in inputs}) > 1:
        raise InputError("A list holds pictures or videos, not both: to this model a picture is a video of one frame.")
    return torch.stack(inputs)


def _pixels(reader: PixelEncoder, item: Any, place: int) -> Tensor:
    if isinstance(item, Image.Image):
        return reader.preprocess(item.convert("RGB"))
    if isinstance(item, (str, Path)):
        return reader.read(Path(item))
    raise InputError(f"Image number {place}: give a path or a PIL image, got {kind(item)}.")
