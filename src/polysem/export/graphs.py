"""What is exported: a tower, or the similarity, as a function of plain tensors; and inputs to try it with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from polysem.encoders import ImageEncoder, PixelEncoder, TextEncoder, Tokens
from polysem.errors import ConfigError, PolysemError
from polysem.features import LocalFeatures
from polysem.models import Model, Tower
from polysem.pooling import Pooling
from polysem.similarity import Similarity

OPSET = 18
LENGTHS = ((1,), (5, 2), (16, 1, 7, 4, 3))
"""Tokens of the items of each batch that a graph is tried with; the longest text that is allowed comes on top."""


class ExportError(PolysemError):
    """A part that cannot be written as a graph, a graph that computes something else, or a folder in the way."""


@dataclass(frozen=True)
class Port:
    """An input or output of a graph. shape: numbers, and the names of axes that may have any length."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def axes(self) -> dict[int, str]:
        return {place: size for place, size in enumerate(self.shape) if isinstance(size, str)}

    def sample(self, generator: torch.Generator, **sizes: int) -> Tensor:
        """Random numbers for it. sizes: of the axes that have a name."""
        return torch.randn([sizes[size] if isinstance(size, str) else size for size in self.shape], generator=generator)


class Graph(nn.Module, ABC):
    """inputs, output: in the order of `forward`. part: what it is made of, for messages."""

    inputs: tuple[Port, ...]
    output: Port
    part: str

    @abstractmethod
    def samples(self) -> list[tuple[Tensor, ...]]:
        """Batches of several sizes; items of several lengths, where they have any."""


class TowerGraph(Graph):
    def __init__(self, tower: Tower, side: str, *inputs: Port) -> None:
        super().__init__()
        self.tower, self.inputs = tower, inputs
        self.part = f"{side} tower ({tower.encoder.registered_name} and {tower.sets.registered_name})"
        self.output = Port("embeddings", "float32", ("batch", tower.sets.k, tower.sets.dim))


class PixelGraph(TowerGraph):
    """Pixels to sets, a frozen encoder included."""

    def __init__(self, tower: Tower) -> None:
        encoder = cast(PixelEncoder, tower.encoder)
        side, frames = encoder.image_size, ("frames",) if encoder.kind == "video" else ()
        super().__init__(tower, "image", Port("pixels", "float32", ("batch", *frames, 3, side, side)))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.tower(pixels).vectors

    def samples(self) -> list[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(0)
        return [(self.inputs[0].sample(generator, batch=b, frames=f),) for b, f in ((1, 1), (2, 5), (5, 3))]


class FeatureGraph(TowerGraph):
    """Precomputed local features to sets."""

    def __init__(self, tower: Tower) -> None:
        features = Port("features", "float32", ("batch", "tokens", tower.encoder.config["input_dim"]))
        super().__init__(tower, "image", features, Port("feature_mask", "int64", ("batch", "tokens")))

    def forward(self, features: Tensor, feature_mask: Tensor) -> Tensor:
        return self.tower(LocalFeatures(features, feature_mask != 0)).vectors

    def samples(self) -> list[tuple[Tensor, ...]]:
        generator, masks = torch.Generator().manual_seed(0), map(_mask, (*LENGTHS, (36, 20)))
        return [(self.inputs[0].sample(generator, batch=len(m), tokens=m.shape[1]), m) for m in masks]


class TextGraph(TowerGraph):
    """Token ids to sets. max_tokens: the longest text that the tokenizer and every table of positions take."""

    def __init__(self, tower: Tower) -> None:
        super().__init__(
            tower, "text", *(Port(n, "int64", ("batch", "tokens")) for n in ("input_ids", "attention_mask"))
        )
        encoder: Any = tower.encoder
        tables = [part.max_tokens for part in tower.modules() if isinstance(part, Pooling) and part.max_tokens]
        self.max_tokens = int(min([encoder.max_length, *tables]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.tower(Tokens(input_ids, attention_mask != 0)).vectors

    def samples(self) -> list[tuple[Tensor, ...]]:
        generator, words = torch.Generator().manual_seed(0), cast(TextEncoder, self.tower.encoder).vocab_size
        lengths = [[min(length, self.max_tokens) for length in batch] for batch in (*LENGTHS, (self.max_tokens, 6))]
        return [(torch.randint(words, mask.shape, generator=generator), mask) for mask in map(_mask, lengths)]


class SimilarityGraph(Graph):
    """Two collections of sets to the score of each pair."""

    def __init__(self, similarity: Similarity, sizes: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.similarity = similarity
        self.part = f"similarity ({similarity.config['name']})"
        self.inputs = tuple(Port(n, "float32", (n, k, dim)) for n, k in zip(("images", "texts"), sizes, strict=True))
        self.output = Port("scores", "float32", ("images", "texts"))

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        a, b = self.similarity.prepare(images), self.similarity.prepare(texts)
        (items, k, _), (queries, size, dim) = a.shape, b.shape
        c = self.similarity.closeness(a.reshape(-1, dim), b.transpose(0, 1).reshape(-1, dim).t())
        return self.similarity.reduce(c.view(items, k, size, queries))

    def samples(self) -> list[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(0)
        return [
            tuple(nn.functional.normalize(port.sample(generator, images=i, texts=t), dim=-1) for port in self.inputs)
            for i, t in ((1, 1), (3, 2), (5, 7))
        ]


def build_graphs(model: Model) -> dict[str, Graph]:
    """The graphs of both towers and the similarity, by name."""
    for side, tower in (("image", model.image), ("text", model.text)):
        encoder = tower.encoder
        if not isinstance(encoder, (PixelEncoder, TextEncoder)) and encoder.takes != "features":
            name = encoder.config["name"]
            raise ConfigError(
                f"The {side} encoder {name!r} cannot be exported: no graph takes {encoder.takes} as it does."
            )
        if isinstance(encoder, ImageEncoder) and encoder.grid(1, 1) is not None:
            raise ConfigError(
                f"The {side} encoder {encoder.config['model']!r} cannot be exported: it sees each picture in its own "
                "proportions, and a graph has one shape. Export a model of a fixed size, such as "
                "google/siglip2-base-patch16-224 in place of a NaFlex one."
            )
        if tower.reads_padding and encoder.takes != "pixels":
            raise ConfigError(
                f"The {side} tower cannot be exported: a part of variant 'official' reads padding as the released code "
                "does, so its vectors depend on the batch. Import or train the model with variant 'paper'."
            )
    image = PixelGraph(model.image) if isinstance(model.image.encoder, PixelEncoder) else FeatureGraph(model.image)
    similarity = SimilarityGraph(model.similarity, model.set_sizes, model.dim)
    return {"image": image.eval(), "text": TextGraph(model.text).eval(), "similarity": similarity.eval()}


def _mask(lengths: Sequence[int]) -> Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
