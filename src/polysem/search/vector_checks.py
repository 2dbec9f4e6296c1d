"""What every place that keeps an index does with sets: check them, average them, score a few of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polysem import similarity
from polysem.errors import ConfigError, InputError
from polysem.search.engine.scoring import Scoring
from polysem.search.store import Batch

# Less than what a search accepts (`engine.checks`), so that rounding to half precision makes nobody unacceptable.
_UNEVEN = 0.009
_ROUNDING = 1e-5
_BLOCK = 4096


def check_units(batch: Batch) -> None:
    """Scores and bounds are of unit vectors: an error names the first item that has another.

    What is not a number, zero or of another shape is left to `entries.checked`, which knows more about it.
    """
    vectors = np.asarray(batch.vectors)
    if vectors.ndim != 3 or len(vectors) != len(batch.entries) or vectors.dtype.kind != "f":
        return
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        norms = np.sqrt(np.einsum("nkd,nkd->nk", block, block, dtype=np.float64))
        wrong = np.isfinite(norms) & (norms > 0) & (np.abs(norms - 1) > _UNEVEN)
        if wrong.any():
            row, element = np.argwhere(wrong)[0].tolist()
            raise InputError(
                f"Vector {element} of item {batch.entries[start + row].id!r:.80} has norm {norms[row, element]:.4g}; "
                "unit vectors are needed, and nothing of the batch was added. Normalise them first."
            )


def as_units(vectors: NDArray[np.float32], compared: Mapping[str, Any]) -> NDArray[np.float32]:
    """A model's vectors as an index keeps them. The cosine does not see lengths and the engine wants 1: label-wise
    models as released, which leave their vectors as they are, get it here. For other similarities length counts."""
    if not similarity.registry.find(compared["name"]).normalises:
        return vectors
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    other = (norms > 0) & (np.abs(norms - 1) > _ROUNDING)  # what is 1 already stays to the last bit
    units: NDArray[np.float32] = np.where(other, vectors / np.where(other, norms, 1), vectors)
    return units


def means_of(sets: NDArray[Any]) -> NDArray[np.float32]:
    """(..., K, D) -> (..., D), not normalised: a set whose vectors disagree has a short mean, and lower scores."""
    means: NDArray[np.float32] = np.ascontiguousarray(np.asarray(sets).mean(-2, dtype=np.float32))
    return means


def bounded(compared: Mapping[str, Any]) -> Scoring | None:
    """How the exact engine scores under this similarity; None where inner products do not bound it."""
    try:
        return Scoring.of(compared)
    except ConfigError:
        return None


def plain_scores(sets: NDArray[Any], query: NDArray[np.float32], compared: Mapping[str, Any]) -> NDArray[np.float64]:
    """(n, K, D), (L, D) -> (n,) by the similarity's own code, in float64."""
    with torch.inference_mode():
        ours, theirs = torch.from_numpy(query.astype(np.float64))[None], torch.from_numpy(sets.astype(np.float64))
        found: NDArray[np.float64] = similarity.build(**compared).scores(ours, theirs)[0].numpy()
    return found
