"""Candidates for the fast mode: one vector for each item, the mean of its set, in a faiss index.

By Jensen's inequality the inner product of two means bounds smooth-Chamfer from below and follows it closely, so the
items whose means are closest to the query's are the right ones to score in full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from polysem.search.vector_checks import means_of

# So few means are compared one by one: faster than a list of cells is read, and nothing is missed.
FEW = 20_000
# Cells of an inverted file for the root of the number of items, and the share of them that a search looks into.
_CELLS, _LOOKED_INTO, _FEWEST_CELLS = 2.0, 1 / 16, 24
# Vectors for each cell that k-means learns from, and rows averaged at once.
_SAMPLE, _BLOCK = 64, 1 << 14


class Means:
    """The set means of one segment."""

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def build(cls, vectors: NDArray[Any]) -> Self:
        """vectors: (N, K, D). Few are kept as they are; many in the cells of an inverted file, a byte per dimension."""
        N, _, D = vectors.shape
        if N < FEW:
            index: Any = faiss.IndexFlatIP(D)
        else:
            cells = int(_CELLS * math.sqrt(N))
            index = faiss.index_factory(D, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
            rows = np.sort(np.random.default_rng(0).permutation(N)[: _SAMPLE * cells])
            index.train(means_of(vectors[rows]))
        for start in range(0, N, _BLOCK):
            index.add(means_of(vectors[start : start + _BLOCK]))
        return cls(index)

    @property
    def _cells(self) -> int:
        """Zero where every mean is compared."""
        return int(getattr(self._index, "nlist", 0))

    def candidates(
        self, query: NDArray[np.float32], count: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows among those allowed whose means are closest to the query's (D,), and how close, best first."""
        share = 1.0
        options: dict[str, Any] = {}
        if allowed is not None:
            share = max(float(allowed.mean()), 1e-9)
            bits = np.packbits(allowed, bitorder="little")
            # It reads `bits`, which must live as long. The stubs know the C++ constructor alone.
            options["sel"] = faiss.IDSelectorBitmap(bits)  # type: ignore[call-arg, arg-type]
        if self._cells:
            # Where few items are allowed, each cell holds few of them: as many must be looked at as without a filter.
            looked_into = max(_FEWEST_CELLS, self._cells * _LOOKED_INTO) / share
            options["nprobe"] = min(self._cells, math.ceil(looked_into))
            chosen: Any = faiss.SearchParametersIVF(**options)
        else:
            chosen = faiss.SearchParameters(**options) if options else None
        scores, rows = self._index.search(query[None], min(count, self._index.ntotal), params=chosen)
        there = rows[0] >= 0
        return rows[0][there], scores[0][there]

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """As `Store.attach` keeps it."""
        return {"faiss": faiss.__version__}, {"index": faiss.serialize_index(self._index)}

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        return cls(faiss.deserialize_index(np.asarray(arrays["index"])))
