"""Precomputed features of single items, straight from disk."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from polysem.data.collection import Media
from polysem.data.reader_errors import DataError


def open_features(path: Path) -> np.ndarray:
    """A memory-mapped float array. Pickled objects are refused: loading one can run anything."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not a readable .npy array ({error}).") from None
    if not np.issubdtype(array.dtype, np.floating):
        raise DataError(f"{path}: expected floating-point features, got {array.dtype}.")
    return array


_mapped = lru_cache(maxsize=16)(open_features)


def load_features(media: Media) -> np.ndarray:
    """(n, dim) of one item: a view of the mapped file, checked to be finite."""
    array = _mapped(media.path)
    features = array if media.row is None else array[media.row]
    if features.ndim != 2 or 0 in features.shape:
        raise DataError(f"{media.path}: expected (tokens, dim) for an item, got shape {features.shape}.")
    if not bool(np.isfinite(features).all()):
        row = "" if media.row is None else f", row {media.row}"
        raise DataError(f"{media.path}{row}: features hold NaN or infinity. Extract this item again.")
    return features
