"""The sets that the search is measured on: made up, from a trained model, or grown from those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.data.readers import open_collection
from polysem.evaluation.embeddings import embed_collection
from polysem.models import load

K, TOPICS = 4, 200
# How far a grown set lies from the real one it comes from, in lengths of it.
FAR = 0.6
_BLOCK = 50_000
Sets = NDArray[Any]


def unit(x: NDArray[Any]) -> NDArray[np.float32]:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def synthetic(items: int, queries: int, width: int, spectrum: str, dtype: Any = np.float32) -> tuple[Sets, Sets]:
    """Items, and queries that are noisy copies of some of them, in dimensions that weigh i^-0.5; "flat": pure noise."""
    rng = np.random.default_rng(0)
    flat = spectrum == "flat"
    weights = np.ones(width, np.float32) if flat else (np.arange(1, width + 1) ** -0.5).astype(np.float32)
    topics = rng.standard_normal((TOPICS, width), dtype=np.float32)
    vectors = np.empty((items, K, width), dtype)
    for start in range(0, items, _BLOCK):
        count = min(_BLOCK, items - start)
        block = rng.standard_normal((count, K, width), dtype=np.float32)
        if not flat:
            centres = topics[rng.integers(0, TOPICS, count)] + rng.standard_normal((count, width), dtype=np.float32)
            block = (centres[:, None] + 0.8 * block) * weights
        vectors[start : start + count] = unit(block)
    noise = unit(rng.standard_normal((queries, K, width), dtype=np.float32) * weights)
    if flat:
        return vectors, noise
    return vectors, unit(vectors[rng.integers(0, items, queries)].astype(np.float32) + 0.6 * noise)


def real(model: Path, data: Path, features: Path | None, text_features: Path | None, cache: Path | None) -> Any:
    """The sets of every image and every caption, by a trained model."""
    found = embed_collection(
        load(model), open_collection(data), features=features, text_features=text_features, cache=cache
    )
    return found.images.numpy(), found.texts.numpy()


def grown(sets: Sets, items: int) -> Sets:
    """The real sets, then copies of them, each vector moved by noise that has the covariance of all vectors."""
    rng = np.random.default_rng(0)
    vectors = sets.reshape(-1, sets.shape[2]).astype(np.float64)
    values, directions = np.linalg.eigh(np.cov(vectors.T))
    spread = (directions * np.sqrt(np.maximum(values, 0))).T.astype(np.float32)
    found = np.empty((items, *sets.shape[1:]), np.float32)
    found[: len(sets)] = sets[:items]
    for start in range(len(sets), items, _BLOCK):
        part = found[start : start + _BLOCK]
        noise = unit(rng.standard_normal(part.shape, dtype=np.float32) @ spread)
        part[:] = unit(sets[rng.integers(0, len(sets), len(part))] + FAR * noise)
    return found
