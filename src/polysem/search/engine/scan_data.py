"""What a scan runs over, and what it compares with: vectors or a sketch of them, and a query in the same form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64] | None
"""Which items, or None for all."""


def address(array: NDArray[Any] | None) -> int | None:
    # Not array.ctypes.data, which is an object of its own and ten times as slow.
    return None if array is None else int(array.__array_interface__["data"][0])


@dataclass(frozen=True)
class Level:
    """Items as stored (no `side`), or a sketch of them: small integers, with what is needed to bound their products."""

    values: NDArray[Any]
    """(N, K, width) float32, float16 or int8."""
    side: NDArray[np.float32] | None = None
    """(N, 3, K): of each sketched vector its scale, the norm of what rounding changed and of what was left out."""

    @property
    def width(self) -> int:
        return int(self.values.shape[2])

    @cached_property
    def addresses(self) -> tuple[int | None, int | None]:
        """Where the values and the sides lie in memory: the same for every search."""
        return address(self.values), address(self.side)


@dataclass(frozen=True)
class Probe:
    """Queries prepared for one level."""

    vectors: NDArray[np.float32]
    """(Q, L, width)."""
    within: NDArray[np.float32] | None = None
    """(Q, L): the norm of each query vector within the sketched dimensions; `outside`: of the rest."""
    outside: NDArray[np.float32] | None = None
    cap: float = np.inf
    """No inner product is larger."""

    def one(self, query: int) -> Probe:
        part = slice(query, query + 1)
        within, outside = (None if x is None else x[part] for x in (self.within, self.outside))
        return Probe(self.vectors[part], within, outside, self.cap)
