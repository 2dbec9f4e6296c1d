"""Galleries with embeddings made by hand: sound, collapsed, starved."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from inspection import making
from polysem.data.collection import Box, Collection, Item, Media
from polysem.evaluation.embeddings import Embeddings
from polysem.inspection.gallery import Gallery

NOWHERE = Media(Path(), "none.npy")
K, D = 4, 12


def items(count: int = 40, captions: int = 2, boxes: bool = False, labels: bool = False) -> Collection:
    names = ("dog", "cat", "car", "boat")

    def one(number: int) -> Item:
        name = names[number % 4]
        box = (Box(name, 0, 0, 10, 10, "animal" if number % 4 < 2 else "vehicle"),) if boxes else ()
        own = (name, "animal" if number % 4 < 2 else "vehicle") if labels else ()
        said = tuple(f"a {name} number {number} of {caption}" for caption in range(captions))
        return Item(f"item {number}", NOWHERE, said, own, "test", box)

    return Collection("toy", "features", [one(number) for number in range(count)])


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def gallery(images: Tensor, texts: Tensor, collection: Collection, alike: str = "smooth_chamfer") -> Gallery:
    size = "slots" if images.shape[1] > 1 else "single-mean"
    model = making.model(size, size, alike)
    return Gallery("made up", model, collection, "test", Embeddings(unit(images), unit(texts)))


def sound(count: int = 40, alike: str = "smooth_chamfer", noise: float = 0.2, **knobs: bool) -> Gallery:
    """Every set holds K meanings of its own; a caption dwells on one of them."""
    own = torch.randn(count, 1, D) + 0.8 * torch.randn(count, K, D)
    said = own.repeat_interleave(2, 0) + noise * torch.randn(2 * count, K, D)
    said[torch.arange(2 * count), torch.randint(K, (2 * count,))] *= 1.0
    dwell = torch.randint(K, (2 * count, 1, 1)).expand(-1, 1, D)
    said = said + 0.5 * said.gather(1, dwell)
    return gallery(own, said, items(count, **knobs), alike)


def collapsed(count: int = 40) -> Gallery:
    """The K elements of a set are one vector."""
    own = torch.randn(count, 1, D)
    images = own + 0.01 * torch.randn(count, K, D)
    return gallery(images, own.repeat_interleave(2, 0) + 0.01 * torch.randn(2 * count, K, D), items(count))


def starved(count: int = 40) -> Gallery:
    """MIL with a single element that knows its item; the others say the same of everything."""
    first, second = (torch.randn(1, K, D) for _ in range(2))
    own = torch.randn(count, D)
    images = first + 0.1 * torch.randn(count, K, D)
    texts = second + 0.1 * torch.randn(2 * count, K, D)
    images[:, 1], texts[:, 2] = own, own.repeat_interleave(2, 0) + 0.1 * torch.randn(2 * count, D)
    return gallery(images, texts, items(count), "mil")


def single(count: int = 40) -> Gallery:
    own = torch.randn(count, 1, D)
    return gallery(own, own.repeat_interleave(2, 0) + 0.5 * torch.randn(2 * count, 1, D), items(count), "cosine")
