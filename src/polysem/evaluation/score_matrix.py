"""Scores of images with texts, from a matrix or from embeddings. Only the tile that is asked for is computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polysem.errors import InputError, kind
from polysem.similarity import Similarity

DOUBLE = 1 << 33
"""Multiplications up to which embeddings are compared in double precision."""

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Rows = slice | Ints
"""Some of the images or texts: a slice, or their positions."""


class Scores(ABC):
    """Scores of every image with every text, larger is better. shape: (images, texts)."""

    shape: tuple[int, int]

    @abstractmethod
    def tile(self, images: Rows, texts: Rows) -> Floats:
        """(i, t), computed on the calling thread."""

    def checked_tile(self, images: Rows, texts: Rows) -> Floats:
        """The tile; raises `InputError` where it holds NaN, which has no rank."""
        tile = self.tile(images, texts)
        if tile.size and np.isnan(tile.min()):
            row, column = np.argwhere(np.isnan(tile))[0]
            image, text = np.arange(self.shape[0])[images][row], np.arange(self.shape[1])[texts][column]
            raise InputError(
                f"The score of image {image} and text {text} is NaN, which has no rank. Look for NaN in the features, "
                "or for a training run that diverged."
            )
        return tile

    def pairs(self, images: Ints, texts: Ints) -> npt.NDArray[np.float64]:
        """(P,) the scores of these pairs alone."""
        values = np.empty(len(images))
        order = np.argsort(images, kind="stable")
        for pairs in np.split(order, np.flatnonzero(np.diff(images[order])) + 1):
            if len(pairs):
                values[pairs] = self.checked_tile(images[pairs[:1]], texts[pairs])[0]
        return values

    def transpose(self) -> Scores:
        return _TransposedScores(self)

    def subset(self, images: Ints | None, texts: Ints | None) -> Scores:
        """Some of the images with some of the texts; None: all."""
        return _SubsetScores(
            self, *(np.arange(n) if p is None else p for n, p in zip(self.shape, (images, texts), strict=True))
        )


class ScoreMatrix(Scores):
    """Scores as an array (I, T), or in a .npy file, which stays on disk."""

    def __init__(self, values: Any) -> None:
        if not isinstance(values, np.ndarray):
            values = np.asarray(values.detach().cpu().float() if isinstance(values, Tensor) else values)
        if values.ndim != 2 or not np.issubdtype(values.dtype, np.floating) or 0 in values.shape:
            raise InputError(f"Scores are a floating-point (images, texts) matrix, not empty; got {kind(values)}.")
        self.values, self.shape = values, (values.shape[0], values.shape[1])

    @classmethod
    def open(cls, path: str | Path) -> ScoreMatrix:
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(
                f"Cannot read scores from {path} ({error}). Write it with numpy.save(path, scores)."
            ) from None
        return cls(values)

    def tile(self, images: Rows, texts: Rows) -> Floats:
        if isinstance(images, np.ndarray) and isinstance(texts, np.ndarray):
            images = images[:, None]  # every one with every text, without a copy of whole rows
        part = self.values[images, texts]
        return np.asarray(part, dtype=np.float32 if part.dtype == np.float16 else part.dtype)


class EmbeddingScores(Scores):
    """Scores of sets of vectors under a similarity. images: (I, K, D); texts: (T, L, D)."""

    def __init__(self, images: Tensor, texts: Tensor, similarity: Similarity) -> None:
        for side, sets in (("images", images), ("texts", texts)):
            if not isinstance(sets, Tensor) or sets.ndim != 3 or not len(sets):
                raise InputError(f"Embeddings of {side} are a tensor (items, set size, dim), got {kind(sets)}.")
        # Where it costs little, in double precision: then equal vectors have equal scores wherever they stand, and
        # ties are seen as such. In single precision a matrix product may treat its last columns differently.
        work = len(images) * len(texts) * images.shape[1] * texts.shape[1] * images.shape[2]
        dtype = torch.float64 if work <= DOUBLE else images.dtype
        with torch.inference_mode():
            self.images, self.texts = (similarity.prepare(side.to(dtype)) for side in (images, texts))
        self.similarity, self.shape = similarity, (len(images), len(texts))

    def tile(self, images: Rows, texts: Rows) -> Floats:
        with torch.inference_mode():
            tile = self.similarity.score_prepared(self.images[images], self.texts[texts])
        return tile.cpu().float().numpy()

    def subset(self, images: Ints | None, texts: Ints | None) -> Scores:
        subset = copy(self)
        subset.images = self.images if images is None else self.images[images]
        subset.texts = self.texts if texts is None else self.texts[texts]
        subset.shape = (len(subset.images), len(subset.texts))
        return subset


class EnsembleScores(Scores):
    """The scores of an ensemble: the mean of several models' scores of the same pairs."""

    def __init__(self, members: Sequence[Scores]) -> None:
        shapes = {member.shape for member in members}
        if len(shapes) != 1:
            raise InputError(f"The members of an ensemble must score the same pairs; shapes are {sorted(shapes)}.")
        self.members, self.shape = list(members), members[0].shape

    def tile(self, images: Rows, texts: Rows) -> Floats:
        total = self.members[0].tile(images, texts).astype(np.float64)
        for member in self.members[1:]:
            total += member.tile(images, texts)
        total /= len(self.members)
        return total.astype(np.float32)

    def subset(self, images: Ints | None, texts: Ints | None) -> Scores:
        return EnsembleScores([member.subset(images, texts) for member in self.members])


class _SubsetScores(Scores):
    def __init__(self, whole: Scores, images: Ints, texts: Ints) -> None:
        self.whole, self.images, self.texts = whole, images, texts
        self.shape = (len(images), len(texts))

    def tile(self, images: Rows, texts: Rows) -> Floats:
        return self.whole.tile(self.images[images], self.texts[texts])

    def checked_tile(self, images: Rows, texts: Rows) -> Floats:
        return self.whole.checked_tile(self.images[images], self.texts[texts])


class _TransposedScores(Scores):
    def __init__(self, straight: Scores) -> None:
        self.straight, self.shape = straight, straight.shape[::-1]

    def tile(self, images: Rows, texts: Rows) -> Floats:
        return self.straight.tile(texts, images).T

    def checked_tile(self, images: Rows, texts: Rows) -> Floats:
        return self.straight.checked_tile(texts, images).T

    def subset(self, images: Ints | None, texts: Ints | None) -> Scores:
        return self.straight.subset(texts, images).transpose()

    def transpose(self) -> Scores:
        return self.straight
