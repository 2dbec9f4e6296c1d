"""Galleries with synthetic embeddings: diverse, collapsed and starved sets, and single vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inspection import small_models
from polysem.data.collection import Box, Collection, Item, Media
from polysem.evaluation.embeddings import Embeddings
from polysem.evaluation.ranking import Ranking, rank_bidirectional
from polysem.evaluation.score_matrix import EmbeddingScores, ScoreMatrix
from polysem.inspection.gallery import EmbeddedGallery

NO_MEDIA = Media(Path(), "none.npy")
K, D = 4, 12


def make_items(count: int = 40, captions: int = 2, boxes: bool = False, labels: bool = False) -> Collection:
    names = ("dog", "cat", "car", "boat")

    def one(number: int) -> Item:
        name = names[number % 4]
        box = (Box(name, 0, 0, 10, 10, "animal" if number % 4 < 2 else "vehicle"),) if boxes else ()
        own = (name, "animal" if number % 4 < 2 else "vehicle") if labels else ()
        captions_of = tuple(f"a {name} number {number} of {caption}" for caption in range(captions))
        return Item(f"item {number}", NO_MEDIA, captions_of, own, "test", box)

    return Collection("toy", "features", [one(number) for number in range(count)])


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def make_gallery(
    images: Tensor, texts: Tensor, collection: Collection, similarity: str = "smooth_chamfer"
) -> EmbeddedGallery:
    size = "slots" if images.shape[1] > 1 else "single-mean"
    model = small_models.make_model(size, size, similarity)
    return EmbeddedGallery("made up", model, collection, "test", Embeddings(unit(images), unit(texts)))


def make_diverse(
    count: int = 40, similarity: str = "smooth_chamfer", noise: float = 0.2, **knobs: bool
) -> EmbeddedGallery:
    """Every set holds K meanings of its own; a caption dwells on one of them."""
    own = torch.randn(count, 1, D) + 0.8 * torch.randn(count, K, D)
    texts = own.repeat_interleave(2, 0) + noise * torch.randn(2 * count, K, D)
    texts[torch.arange(2 * count), torch.randint(K, (2 * count,))] *= 1.0
    dwell = torch.randint(K, (2 * count, 1, 1)).expand(-1, 1, D)
    texts = texts + 0.5 * texts.gather(1, dwell)
    return make_gallery(own, texts, make_items(count, **knobs), similarity)


def make_collapsed(count: int = 40) -> EmbeddedGallery:
    """The K elements of a set are one vector."""
    own = torch.randn(count, 1, D)
    images = own + 0.01 * torch.randn(count, K, D)
    return make_gallery(images, own.repeat_interleave(2, 0) + 0.01 * torch.randn(2 * count, K, D), make_items(count))


def make_starved(count: int = 40) -> EmbeddedGallery:
    """MIL with a single element that knows its item; the others say the same of everything."""
    first, second = (torch.randn(1, K, D) for _ in range(2))
    own = torch.randn(count, D)
    images = first + 0.1 * torch.randn(count, K, D)
    texts = second + 0.1 * torch.randn(2 * count, K, D)
    images[:, 1], texts[:, 2] = own, own.repeat_interleave(2, 0) + 0.1 * torch.randn(2 * count, D)
    return make_gallery(images, texts, make_items(count), "mil")


def make_single(count: int = 40) -> EmbeddedGallery:
    own = torch.randn(count, 1, D)
    texts = own.repeat_interleave(2, 0) + 0.5 * torch.randn(2 * count, 1, D)
    return make_gallery(own, texts, make_items(count), "cosine")


def rank_gallery(gallery: EmbeddedGallery) -> dict[str, Ranking]:
    embeddings = gallery.embeddings
    scores = EmbeddingScores(embeddings.images, embeddings.texts, gallery.model.similarity)
    rankings, _ = rank_bidirectional(scores, gallery.items.caption_items, keep=10)
    return rankings


def rank_scores(scores: np.ndarray) -> dict[str, Ranking]:
    """Of a square matrix whose right answers are on the diagonal."""
    rankings, _ = rank_bidirectional(ScoreMatrix(scores), np.arange(scores.shape[1]), keep=10)
    return rankings
