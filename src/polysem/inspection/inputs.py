"""Items as a model's towers take them: a few at a time, and in the form the encoder wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polysem.data.images import load_image
from polysem.encoders import Encoder, PixelEncoder, TextEncoder, Tokens
from polysem.encoders.preprocessing import to_rgb
from polysem.errors import InputError, kind
from polysem.features import LocalFeatures
from polysem.models.tower import Inputs

Progress = Callable[[int, int], None]


def image_batches(encoder: Encoder, images: Any, batch_size: int) -> Iterator[Inputs]:
    """images: a list of paths, PIL pictures or (tokens, dim) arrays, or `LocalFeatures`; pictures and videos are read
    as they are needed."""
    if isinstance(images, LocalFeatures):
        yield from _parts(images, batch_size)
        return
    _check_list(images, "images")
    for first in range(0, len(images), batch_size):
        part = [images[place] for place in range(first, min(len(images), first + batch_size))]
        yield image_inputs(encoder, part)


def image_inputs(encoder: Encoder, images: Sequence[Any]) -> Inputs:
    """One batch."""
    if encoder.takes == "features":
        return LocalFeatures.from_list([_features(image) for image in images])
    if images and not isinstance(images[0], (str, Path, Image.Image)):  # features of the encoder's own making
        return LocalFeatures.from_list([_features(image) for image in images])
    reader = cast(PixelEncoder, encoder)
    return torch.stack([_pixels(reader, image) for image in images])


def _pixels(reader: PixelEncoder, image: Any) -> Tensor:
    if isinstance(image, (str, Path)):
        return reader.read(Path(image).expanduser())
    return reader.preprocess(picture(image))


def text_batches(encoder: Encoder, texts: Any, batch_size: int) -> Iterator[Inputs]:
    """texts: a list of sentences, `Tokens`, or `LocalFeatures`."""
    if isinstance(texts, LocalFeatures):
        yield from _parts(texts, batch_size)
    elif isinstance(texts, Tokens):
        for first in range(0, len(texts), batch_size):
            part = slice(first, first + batch_size)
            longest = int(texts.lengths[part].max())
            yield Tokens(texts.ids[part, :longest], texts.mask[part, :longest])
    else:
        _check_list(texts, "texts")
        for first in range(0, len(texts), batch_size):
            yield cast(TextEncoder, encoder).tokenize(texts[first : first + batch_size])


def picture(image: Any) -> Image.Image:
    """The picture as the encoder will see it: upright RGB."""
    if isinstance(image, Image.Image):
        return to_rgb(image)
    if isinstance(image, (str, Path)):
        return load_image(Path(image).expanduser())
    raise InputError(f"Expected a path or a PIL image, got {kind(image)}.")


def _features(item: Any) -> Tensor:
    if isinstance(item, (str, Path, Image.Image)):
        raise InputError(
            "This model takes precomputed features, not pictures: give the (tokens, dim) array of the picture's "
            "features, made by the extractor of the data it was trained on. "
            f"Got {item if isinstance(item, (str, Path)) else 'a picture'}."
        )
    found = item if isinstance(item, Tensor) else torch.from_numpy(np.asarray(item))
    if found.ndim != 2 or not found.is_floating_point():
        raise InputError(f"The features of one image are a floating-point (tokens, dim) array, got {kind(item)}.")
    return found.float()


def _parts(features: LocalFeatures, batch_size: int) -> Iterator[LocalFeatures]:
    for first in range(0, len(features), batch_size):
        part = slice(first, first + batch_size)
        summary = None if features.summary is None else features.summary[part]
        yield LocalFeatures(features.values[part], features.mask[part], summary)


def _check_list(given: Any, what: str) -> None:
    if isinstance(given, (str, Path, Image.Image)) or not hasattr(given, "__len__"):
        raise InputError(f"Expected a list of {what}, got {kind(given)}. Put a single one in brackets.")
    if len(given) == 0:
        raise InputError(f"Nothing to look at: the list of {what} is empty.")
