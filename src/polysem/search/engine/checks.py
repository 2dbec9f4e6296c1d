"""Validation of what the engine takes: finite sets of unit vectors, masks and k."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError, NonFiniteError, kind
from polysem.search.engine import native
from polysem.search.engine.scan_data import run_in_parts

# Half precision moves a unit vector's norm by less than a tenth of this.
_NORM_ERROR = 0.01
_BLOCK = 1 << 22
# Fewer numbers than this are not worth a second thread.
_SHARE = 1 << 20


def validate_vectors(vectors: Any) -> tuple[NDArray[Any], float]:
    """The array as the engine reads it, and by how much a norm differs from 1 at most."""
    fits = isinstance(vectors, np.ndarray) and vectors.ndim == 3 and vectors.dtype in (np.float32, np.float16)
    if not fits or 0 in vectors.shape[1:]:
        raise InputError(f"An engine takes a float32 or float16 array (items, set size, dim), got {kind(vectors)}.")
    vectors = np.ascontiguousarray(vectors)
    return vectors, max_norm_error(vectors, "item")


def validate_queries(queries: Any, D: int) -> tuple[NDArray[np.float32], float]:
    """(Q, L, D) as float32, and by how much a norm differs from 1 at most."""
    array = np.asarray(queries)
    if array.ndim != 3 or array.shape[1] == 0 or array.shape[2] != D or array.dtype.kind != "f":
        raise InputError(
            f"Queries must be sets of vectors as wide as the items, (queries, set size, {D}); got {kind(array)}. "
            "Were both made by the same model?"
        )
    array = np.ascontiguousarray(array, dtype=np.float32)
    return array, max_norm_error(array, "query")


def validate_mask(allowed: Any, N: int) -> NDArray[np.bool_]:
    array = np.asarray(allowed)
    if array.shape != (N,) or array.dtype != np.bool_:
        raise InputError(f"`allowed` must be a boolean mask of all {N} items, got {kind(array)}.")
    return array


def validate_k(k: int) -> int:
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}.")
    return int(k)


def max_norm_error(vectors: NDArray[Any], what: str) -> float:
    """By how much a norm differs from 1 at most; an error where that is more than storage could explain."""
    library = native.library()
    if library is not None:
        norms, count = [(1.0, 1.0)], vectors.size // vectors.shape[2]
        run_in_parts(
            lambda *part: norms.append(native.norms(library, vectors, *part)), count, most=vectors.size // _SHARE
        )
        extremes = np.array(norms)
        if (np.abs(extremes - 1) < 2 * _NORM_ERROR).all():
            return float(np.abs(np.sqrt(extremes) - 1).max())
    most, step = 0.0, max(1, _BLOCK // (vectors.shape[1] * vectors.shape[2]))
    for start in range(0, len(vectors), step):
        block = np.asarray(vectors[start : start + step], dtype=np.float32)
        squared = np.einsum("nkd,nkd->nk", block, block, dtype=np.float64)
        wrong = ~(np.abs(squared - 1) < 2 * _NORM_ERROR)
        if wrong.any():
            item, element = np.argwhere(wrong)[0]
            norm = float(np.sqrt(squared[item, element]))
            name = f"vector {element} of {what} {start + item}"
            if not np.isfinite(norm):
                raise NonFiniteError(f"{name.capitalize()} holds NaN or infinite numbers.")
            raise InputError(f"{name.capitalize()} has norm {norm:.4g}; unit vectors are needed. Normalise them first.")
        most = max(most, float(np.abs(np.sqrt(squared) - 1).max(initial=0)))
    return most
