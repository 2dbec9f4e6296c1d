"""Where scores come from: a matrix on disk, or embeddings and a similarity. Only the part that is asked for is made."""

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
Positions = npt.NDArray[np.int64]
Rows = slice | Positions
"""Some of the images or texts: a stretch, or their positions."""


class Scores(ABC):
    """Scores of every image with every text, larger is better. shape: (images, texts)."""

    shape: tuple[int, int]

    @abstractmethod
    def tile(self, images: Rows, texts: Rows) -> Floats:
        """(i, t), on the thread that asks."""

    def checked_tile(self, images: Rows, texts: Rows) -> Floats:
        """The tile, which must hold numbers: a NaN has no rank."""
        found = self.tile(images, texts)
        if found.size and np.isnan(found.min()):
            row, column = (int(axis[0]) for axis in np.nonzero(np.isnan(found)))
            raise InputError(
                f"The score of image {_position(images, row)} and text {_position(texts, column)} is NaN, and NaN has "
                "no rank. Look for NaN in the features, or for a training run that diverged."
            )
        return found

    def transposed(self) -> Scores:
        return _Transposed(self)

    def part(self, images: Positions | None, texts: Positions | None) -> Scores:
        """Some of the images with some of the texts; None: all."""
        return _Part(
            self, *(np.arange(n) if p is None else p for n, p in zip(self.shape, (images, texts), strict=True))
        )


class Matrix(Scores):
    """Scores that are there already: an array, or a .npy file, which stays on disk."""

    def __init__(self, values: Any) -> None:
        if not isinstance(values, np.ndarray):
            values = np.asarray(values.detach().cpu().float() if isinstance(values, Tensor) else values)
        if values.ndim != 2 or not np.issubdtype(values.dtype, np.floating) or 0 in values.shape:
            raise InputError(
                f"Scores are a floating-point (images, texts) matrix that is not empty, got {values.dtype} of shape "
                f"{values.shape}."
            )
        self.values, self.shape = values, (values.shape[0], values.shape[1])

    @classmethod
    def open(cls, path: str | Path) -> Matrix:
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise InputError(f"There is no file {path}. Write one with numpy.save(path, scores).") from None
        except (OSError, ValueError, EOFError) as error:
            raise InputError(
                f"{path} is not a matrix that numpy can read ({error}). Write it with numpy.save(path, scores)."
            ) from None
        return cls(values)

    def tile(self, images: Rows, texts: Rows) -> Floats:
        if isinstance(images, np.ndarray) and isinstance(texts, np.ndarray):
            images = images[:, None]  # every one with every text, without a copy of whole rows
        part = self.values[images, texts]
        return np.asarray(part, dtype=np.float32 if part.dtype == np.float16 else part.dtype)


class Embedded(Scores):
    """Sets of vectors and the similarity that compares them. images: (I, K, D); texts: (T, L, D)."""

    def __init__(self, images: Tensor, texts: Tensor, similarity: Similarity) -> None:
        for side, given in (("images", images), ("texts", texts)):
            if not isinstance(given, Tensor) or given.ndim != 3 or not len(given):
                raise InputError(f"Embeddings of {side} are a tensor (items, set size, dim), got {kind(given)}.")
        # Where it costs little, in double precision: then equal vectors have equal scores, whatever their place, and
        # ties are seen as such. In single precision a matrix product may treat its last columns differently.
        work = len(images) * len(texts) * images.shape[1] * texts.shape[1] * images.shape[2]
        dtype = torch.float64 if work <= DOUBLE else images.dtype
        with torch.inference_mode():
            self.images, self.texts = (similarity.prepare(side.to(dtype)) for side in (images, texts))
        self.similarity, self.shape = similarity, (len(images), len(texts))

    def tile(self, images: Rows, texts: Rows) -> Floats:
        with torch.inference_mode():
            found = self.similarity.prepared_scores(self.images[images], self.texts[texts])
        return found.cpu().float().numpy()

    def part(self, images: Positions | None, texts: Positions | None) -> Scores:
        found = copy(self)
        found.images = self.images if images is None else self.images[images]
        found.texts = self.texts if texts is None else self.texts[texts]
        found.shape = (len(found.images), len(found.texts))
        return found


class Mean(Scores):
    """An ensemble: the mean of several models' scores of the same pairs."""

    def __init__(self, members: Sequence[Scores]) -> None:
        shapes = {member.shape for member in members}
        if len(shapes) != 1:
            raise InputError(
                f"The members of an ensemble must score the same pairs; their shapes are {sorted(shapes)}."
            )
        self.members, self.shape = list(members), members[0].shape

    def tile(self, images: Rows, texts: Rows) -> Floats:
        total = self.members[0].tile(images, texts).astype(np.float64)
        for member in self.members[1:]:
            total += member.tile(images, texts)
        total /= len(self.members)
        return total.astype(np.float32)

    def part(self, images: Positions | None, texts: Positions | None) -> Scores:
        return Mean([member.part(images, texts) for member in self.members])


class _Part(Scores):
    def __init__(self, whole: Scores, images: Positions, texts: Positions) -> None:
        self.whole, self.images, self.texts = whole, images, texts
        self.shape = (len(images), len(texts))

    def tile(self, images: Rows, texts: Rows) -> Floats:
        return self.whole.tile(self.images[images], self.texts[texts])

    def checked_tile(self, images: Rows, texts: Rows) -> Floats:
        return self.whole.checked_tile(self.images[images], self.texts[texts])


class _Transposed(Scores):
    def __init__(self, straight: Scores) -> None:
        self.straight, self.shape = straight, straight.shape[::-1]

    def tile(self, images: Rows, texts: Rows) -> Floats:
        return self.straight.tile(texts, images).T

    def checked_tile(self, images: Rows, texts: Rows) -> Floats:
        return self.straight.checked_tile(texts, images).T

    def part(self, images: Positions | None, texts: Positions | None) -> Scores:
        return self.straight.part(texts, images).transposed()

    def transposed(self) -> Scores:
        return self.straight


def _position(rows: Rows, place: int) -> int:
    return int(rows.start or 0) + place if isinstance(rows, slice) else int(rows[place])
