"""What is exported: a tower, or the similarity, as a function of plain tensors; and inputs to try it with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from polysem.encoders import PixelEncoder, TextEncoder, Tokens
from polysem.encoders.image import ImageEncoder, VideoFrames
from polysem.errors import ConfigError
from polysem.features import LocalFeatures
from polysem.models import Model, Tower
from polysem.pooling import Pooling
from polysem.similarity import Similarity

LENGTHS = ((1,), (5, 2), (16, 1, 7, 4, 3))
"""Tokens of the items of each batch that a graph is tried with; the longest text that is allowed comes on top."""


@dataclass(frozen=True)
class Port:
    """An input or output of a graph. shape: numbers, and the names of axes that may have any length."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def axes(self) -> dict[int, str]:
        return {place: size for place, size in enumerate(self.shape) if isinstance(size, str)}


class Graph(nn.Module, ABC):
    """inputs, output: in the order of `forward`. part: what it is made of, for messages."""

    inputs: tuple[Port, ...]
    output: Port
    part: str

    @abstractmethod
    def samples(self) -> list[tuple[Tensor, ...]]:
        """Batches of several sizes; items of several lengths, where they have any."""


class TowerGraph(Graph):
    def __init__(self, tower: Tower, side: str) -> None:
        super().__init__()
        self.tower = tower
        names = (tower.encoder.config["name"], tower.sets.config["name"])
        self.part = f"{side} tower ({' and '.join(names)})"
        self.output = Port("embeddings", "float32", ("batch", tower.sets.k, tower.sets.dim))


class PixelGraph(TowerGraph):
    """Pixels to sets, a frozen encoder included."""

    def __init__(self, tower: Tower) -> None:
        super().__init__(tower, "image")
        side = cast(ImageEncoder | VideoFrames, tower.encoder).image_size
        self.frames = ("frames",) if isinstance(tower.encoder, VideoFrames) else ()
        self.inputs = (Port("pixels", "float32", ("batch", *self.frames, 3, side, side)),)

    def forward(self, pixels: Tensor) -> Tensor:
        vectors: Tensor = self.tower(pixels).vectors
        return vectors

    def samples(self) -> list[tuple[Tensor, ...]]:
        luck, side = torch.Generator().manual_seed(0), self.inputs[0].shape[-1]
        shapes = [(items, *(frames for _ in self.frames)) for items, frames in ((1, 1), (2, 5), (5, 3))]
        return [(torch.randn(*shape, 3, cast(int, side), cast(int, side), generator=luck),) for shape in shapes]


class FeatureGraph(TowerGraph):
    """Precomputed local features to sets."""

    def __init__(self, tower: Tower) -> None:
        super().__init__(tower, "image")
        width = tower.encoder.config["input_dim"]
        shape = ("batch", "tokens")
        self.inputs = (Port("features", "float32", (*shape, width)), Port("feature_mask", "int64", shape))

    def forward(self, features: Tensor, feature_mask: Tensor) -> Tensor:
        vectors: Tensor = self.tower(LocalFeatures(features, feature_mask != 0)).vectors
        return vectors

    def samples(self) -> list[tuple[Tensor, ...]]:
        luck, width = torch.Generator().manual_seed(0), cast(int, self.inputs[0].shape[-1])
        masks = [_mask(lengths) for lengths in (*LENGTHS, (36, 20))]
        return [(torch.randn(*mask.shape, width, generator=luck), mask) for mask in masks]


class TextGraph(TowerGraph):
    """Token ids to sets."""

    def __init__(self, tower: Tower) -> None:
        super().__init__(tower, "text")
        shape = ("batch", "tokens")
        self.inputs = (Port("input_ids", "int64", shape), Port("attention_mask", "int64", shape))
        self.max_tokens = max_tokens(tower)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors: Tensor = self.tower(Tokens(input_ids, attention_mask != 0)).vectors
        return vectors

    def samples(self) -> list[tuple[Tensor, ...]]:
        luck = torch.Generator().manual_seed(0)
        words = cast(TextEncoder, self.tower.encoder).vocab_size
        lengths = [[min(length, self.max_tokens) for length in batch] for batch in (*LENGTHS, (self.max_tokens, 6))]
        return [(torch.randint(words, mask.shape, generator=luck), mask) for mask in map(_mask, lengths)]


class SimilarityGraph(Graph):
    """Two collections of sets to the score of each pair."""

    def __init__(self, similarity: Similarity, sizes: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.similarity, self.sizes, self.dim = similarity, sizes, dim
        self.part = f"similarity ({similarity.config['name']})"
        self.inputs = (
            Port("images", "float32", ("images", sizes[0], dim)),
            Port("texts", "float32", ("texts", sizes[1], dim)),
        )
        self.output = Port("scores", "float32", ("images", "texts"))

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        both = self.similarity
        a, b = both.prepare(images), both.prepare(texts)
        (items, k, _), (queries, size, dim) = a.shape, b.shape
        c = both.closeness(a.reshape(-1, dim), b.transpose(0, 1).reshape(-1, dim).t())
        return both.reduce(c.view(items, k, size, queries))

    def samples(self) -> list[tuple[Tensor, ...]]:
        luck, (k, size) = torch.Generator().manual_seed(0), self.sizes
        pairs = [
            (torch.randn(i, k, self.dim, generator=luck), torch.randn(t, size, self.dim, generator=luck))
            for i, t in ((1, 1), (3, 2), (5, 7))
        ]
        return [tuple(nn.functional.normalize(side, dim=-1) for side in pair) for pair in pairs]


def graphs(model: Model) -> dict[str, Graph]:
    """Of both towers and the similarity, by name."""
    for side, tower in (("image", model.image), ("text", model.text)):
        _check(tower, side)
    image = PixelGraph(model.image) if isinstance(model.image.encoder, PixelEncoder) else FeatureGraph(model.image)
    return {
        "image": image.eval(),
        "text": TextGraph(model.text).eval(),
        "similarity": SimilarityGraph(model.similarity, model.set_sizes, model.dim).eval(),
    }


def max_tokens(tower: Tower) -> int:
    """The longest text that a tower takes: of its tokenizer, and of a table of positions further on."""
    encoder: Any = tower.encoder
    tables = [part.max_tokens for part in tower.modules() if isinstance(part, Pooling) and part.max_tokens]
    return int(min([encoder.max_length, *tables]))


def _check(tower: Tower, side: str) -> None:
    encoder = tower.encoder
    known = isinstance(encoder, (ImageEncoder, VideoFrames, TextEncoder)) or encoder.takes == "features"
    if not known:
        raise ConfigError(
            f"The {side} encoder {encoder.config['name']!r} cannot be exported: it takes {encoder.takes} of a kind "
            "that no graph has been written for."
        )
    if tower.reads_padding and encoder.takes != "pixels":
        raise ConfigError(
            f"The {side} tower cannot be exported: a part of it is of variant 'official', which reads padding as the "
            "released code does, so that its vectors depend on how a batch was padded. Import or train the model with "
            "variant 'paper'."
        )


def _mask(lengths: Any) -> Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
