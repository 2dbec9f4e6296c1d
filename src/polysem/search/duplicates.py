"""Near-duplicate results: copies of one file, and images that were shrunk, cropped or compressed again.

Two sets are near-duplicates if every vector of each has a partner in the other with a cosine of at least the threshold:

    min( min over x of max over y of ⟨x, y⟩,  min over y of max over x of ⟨x, y⟩ )  >=  threshold

It is symmetric, does not depend on the scale of the model's similarity, and for single vectors it is the cosine.
One vector without a partner tells two images apart. `docs/benchmarks/search.md` says how the default was measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError, NonFiniteError, kind

THRESHOLD = 0.8


def group_duplicates(vectors: NDArray[Any], threshold: float = THRESHOLD) -> list[int]:
    """For each result the position of the better one that it duplicates; its own if there is none.

    A result is compared with leaders only, results that duplicate nothing better: a chain of small changes does not
    fold its two ends together.

    Args:
        vectors: (n, K, D) sets of the results, best first.
        threshold: the cosine from which on two vectors are partners.
    """
    sets = _normalise(vectors, threshold)
    leaders: list[int] = []
    leader_of: list[int] = []
    for position in range(len(sets)):
        alike = np.flatnonzero(compare_sets(sets[position], sets[leaders]) >= threshold)
        leader_of.append(leaders[alike[0]] if len(alike) else position)
        if not len(alike):
            leaders.append(position)
    return leader_of


def compare_sets(one: NDArray[np.float32], many: NDArray[np.float32]) -> NDArray[np.float32]:
    """(K, D), (n, L, D) unit vectors -> (n,): the cosine that the worst matched vector of either set still has."""
    cosines = np.einsum("kd,nld->nkl", one, many, optimize=True)
    worst: NDArray[np.float32] = np.minimum(cosines.max(2).min(1), cosines.max(1).min(1))
    return worst


def _normalise(vectors: NDArray[Any], threshold: float) -> NDArray[np.float32]:
    given: NDArray[Any] = np.asarray(vectors)
    if given.ndim != 3 or given.dtype.kind != "f" or 0 in given.shape[1:]:
        raise InputError(f"group_duplicates() takes floating-point sets (results, K, dim), got {kind(given)}.")
    if not 0 < threshold <= 1:
        raise InputError(f"Near-duplicates begin at a cosine above 0 and up to 1, got {threshold}. Try {THRESHOLD}.")
    sets: NDArray[np.float32] = given.astype(np.float32)
    if not np.isfinite(sets).all():
        raise NonFiniteError("Some results' vectors are NaN or infinite: the index is damaged. Encode the items again.")
    lengths = np.linalg.norm(sets, axis=2, keepdims=True)
    # The smallest margin for rounding: an image is a duplicate of itself at a threshold of 1.
    sets *= np.float32(1 + 1e-6) / np.maximum(lengths, np.finfo(np.float32).tiny)
    return sets
