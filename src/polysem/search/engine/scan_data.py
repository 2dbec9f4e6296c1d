"""The data of a scan: items and queries in one form, the k best that it gives, and its split over threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polysem import cpu_blocks

_CPU = torch.device("cpu")
Rows = NDArray[np.int64] | None
"""Which items, or None for all."""


def address(array: NDArray[Any] | None) -> int | None:
    # Not array.ctypes.data, which is an object of its own and ten times as slow.
    return None if array is None else int(array.__array_interface__["data"][0])


@dataclass(frozen=True)
class ScanItems:
    """Item vectors to scan: as stored (`norms` is None), or an int8 sketch with what bounds its inner products."""

    values: NDArray[Any]
    """(N, K, width) float32, float16 or int8."""
    norms: NDArray[np.float32] | None = None
    """(N, 3, K): of each sketched vector its scale, the norm of what rounding changed and of what was left out."""

    @property
    def width(self) -> int:
        return int(self.values.shape[2])

    @cached_property
    def addresses(self) -> tuple[int | None, int | None]:
        """Where values and norms lie in memory: the same for every search."""
        return address(self.values), address(self.norms)


@dataclass(frozen=True)
class ScanQueries:
    """Queries in the form of one `ScanItems`: rotated and cut to its width where that is a sketch."""

    vectors: NDArray[np.float32]
    """(Q, L, width)."""
    within: NDArray[np.float32] | None = None
    """(Q, L): the norm of each query vector within the sketched dimensions; `outside`: of the rest."""
    outside: NDArray[np.float32] | None = None
    cap: float = np.inf
    """No inner product is larger."""

    def select(self, query: int) -> ScanQueries:
        """One of the queries."""
        part = slice(query, query + 1)
        within, outside = (None if x is None else x[part] for x in (self.within, self.outside))
        return ScanQueries(self.vectors[part], within, outside, self.cap)


@dataclass(frozen=True)
class TopHits:
    """The k best positions, best first; equal scores in ascending position. Fewer where there are fewer items."""

    positions: NDArray[np.int64]
    scores: NDArray[np.float64]
    scored: int
    """How many items were scored: all of them where nothing could be pruned."""


def top_k_each(
    rows: Sequence[NDArray[np.int64]], scores: NDArray[np.float64], k: int, scored: Sequence[int]
) -> list[TopHits]:
    """`top_k` for many queries: the rows of each, and the scores of all of them one after the other."""
    counts = [len(those) for those in rows]
    positions = np.concatenate(rows)
    order = np.lexsort((positions, -scores, np.repeat(np.arange(len(rows)), counts)))
    positions, scores = positions[order], scores[order]
    stops = accumulate(counts)
    parts = (slice(stop - count, stop - count + min(k, count)) for stop, count in zip(stops, counts, strict=True))
    return [TopHits(positions[part], scores[part], n) for part, n in zip(parts, scored, strict=True)]


def top_k(positions: NDArray[np.int64], scores: NDArray[np.float64], k: int, scored: int) -> TopHits:
    """The k best of those whose exact scores are known."""
    order = np.lexsort((positions, -scores))[:k]
    return TopHits(positions[order], scores[order], scored)


def run_in_parts(
    run: Callable[[int, int], None],
    count: int,
    *,
    most: int | None = None,
    multiple: int = 1,
    largest: int | None = None,
) -> None:
    """Call run(first, last) for parts of `count`, on at most `most` threads; all parts but the last are a `multiple`.

    As many parts as threads, or more if none may be larger than `largest`. `run` must release the GIL for most of its
    time, or nothing is won.
    """
    workers = max(1, cpu_blocks.count(_CPU) if most is None else min(most, cpu_blocks.count(_CPU)))
    step = max(1, -(-count // (workers * multiple))) * multiple
    step = step if largest is None else min(step, largest)
    parts = [partial(run, first, min(first + step, count)) for first in range(0, count, step)]
    if workers > 1:
        cpu_blocks.run(parts, _CPU)
    else:
        for part in parts:
            part()
