"""Scans of items against queries: float32 scores or upper bounds of every item, and exact float64 scores of a few.

Scans run on all of torch's threads, natively where that was built. Exact scores are the same to the last bit on every
path: a product of two float32 is exact in float64, so an inner product depends on nothing but the order of its sums,
and that order is fixed here: eight partial sums, each over every eighth dimension, then halves added to halves. The
native loop follows it; what comes after the products is `Scoring.reduce_exactly` for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polysem import cpu_blocks
from polysem.search.engine import native
from polysem.search.engine.native import Native
from polysem.search.engine.scoring import FLOAT32_ROUNDING, Float32, Float64, Int64, Scoring

Rows = Int64 | None
"""Which items, or None for all."""
_CPU = torch.device("cpu")
# Numbers of a block for torch: enough for the matrix product, few enough to stay in a core's cache.
_BLOCK = 1 << 18
# Fewer numbers than this are not worth a second thread.
SHARE = 1 << 20
# A multiple of the items that the native loops take at once; queries of the usual size that they do.
_STEP, _GROUP = 128, 48
# Partial sums of an exact inner product; numbers of a block of candidates, to bound the memory that ties can ask for.
_LANES, _EXACT_BLOCK = 8, 1 << 20


@dataclass(frozen=True)
class ScanItems:
    """Item vectors to scan: as stored (`norms` is None), or an int8 sketch with what bounds its inner products."""

    values: NDArray[Any]
    """(N, K, width) float32, float16 or int8."""
    norms: Float32 | None = None
    """(N, 3, K): of each sketched vector its scale, the norm of what rounding changed and of what was left out."""

    @property
    def width(self) -> int:
        return int(self.values.shape[2])

    @cached_property
    def addresses(self) -> tuple[int | None, int | None]:
        """Where values and norms lie in memory: the same for every search."""
        return native.address(self.values), native.address(self.norms)


@dataclass(frozen=True)
class ScanQueries:
    """Queries in the form of one `ScanItems`: rotated and cut to its width where that is a sketch."""

    vectors: Float32
    """(Q, L, width)."""
    within: Float32 | None = None
    """(Q, L): the norm of each query vector within the sketched dimensions; `outside`: of the rest."""
    outside: Float32 | None = None
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

    positions: Int64
    scores: Float64
    scored: int
    """How many items were scored: all of them where nothing could be pruned."""


NO_HITS = TopHits(np.empty(0, np.int64), np.empty(0), 0)


def top_k(positions: Int64, scores: Float64, k: int, scored: int) -> TopHits:
    """The k best of those whose exact scores are known."""
    order = np.lexsort((positions, -scores))[:k]
    return TopHits(positions[order], scores[order], scored)


def run_in_parts(
    run: Callable[[int, int], None], count: int, most: int, *, multiple: int = 1, largest: int | None = None
) -> None:
    """Call run(first, last) for parts of `count`, on at most `most` threads; all parts but the last are a `multiple`.

    As many parts as threads, or more if none may be larger than `largest`. `run` must release the GIL for most of its
    time, or nothing is won.
    """
    workers = max(1, min(most, cpu_blocks.count(_CPU)))
    step = max(1, -(-count // (workers * multiple))) * multiple
    step = step if largest is None else min(step, largest)
    cpu_blocks.run([partial(run, first, min(first + step, count)) for first in range(0, count, step)], _CPU)


def scan_query(items: ScanItems, queries: ScanQueries, scoring: Scoring, rows: Rows = None) -> Float32:
    """(n,) scores of one query, or upper bounds where the items are a sketch."""
    scores = np.empty(len(items.values) if rows is None else len(rows), np.float32)
    library = native.library()
    if library is not None:
        _share(items, len(scores), partial(Native(library, items, queries, scoring).scan, scores, rows))
    else:
        _share(items, len(scores), partial(_scan_with_torch, items, queries, scoring, rows, scores[None]))
    return scores


def scan_batch(items: ScanItems, queries: ScanQueries, scoring: Scoring) -> Float32:
    """(Q, N) scores of many queries, or upper bounds."""
    Q, N = len(queries.vectors), len(items.values)
    scores = np.empty((Q, N), np.float32)
    library = native.library()
    if library is None:
        _share(items, N, partial(_scan_with_torch, items, queries, scoring, None, scores))
        return scores
    loops = Native(library, items, queries, scoring)
    if Q > N:  # the longer side can be shared out more evenly
        parts = Q * queries.vectors.shape[1] * items.width // SHARE
        run_in_parts(lambda *part: loops.batch(part, (0, N), scores), Q, parts, multiple=_GROUP)
    else:
        _share(items, N, lambda *part: loops.batch((0, Q), part, scores))
    return scores


def select_largest(scores: Float32, k: int) -> Int64:
    """The positions of the k largest scores, in no order; of equal ones any."""
    library = native.library()
    if k >= len(scores):
        return np.arange(len(scores))
    if library is not None:
        return native.find_largest(library, scores, k)
    return np.argpartition(scores, len(scores) - k)[len(scores) - k :].astype(np.int64)


def rounding() -> float:
    """Of one step of the arithmetic in use; torch may be told to multiply with fewer digits."""
    full = native.library() is not None or torch.get_float32_matmul_precision() == "highest"
    return FLOAT32_ROUNDING if full else 2.0**-8


def count_fixed_sides(items: ScanItems, *, many: bool) -> int:
    """How many factors of its products `scan_batch` (`many`) or `scan_query` rounds to 16 bits natively."""
    if native.library() is None:
        return 0
    if items.norms is not None:
        return 1  # a sketch is whole numbers already
    return 2 if many else 0


def _share(items: ScanItems, count: int, fill: Callable[[int, int], None]) -> None:
    """Call fill(first, last) for parts of so many items."""
    run_in_parts(fill, count, count * items.values.shape[1] * items.width // SHARE, multiple=_STEP)


@torch.inference_mode()
def _scan_with_torch(
    items: ScanItems, queries: ScanQueries, scoring: Scoring, rows: Rows, out: Float32, first: int, last: int
) -> None:
    """Fill out[:, first:last], (Q, n), block by block: scores, or upper bounds, of items first to last (of rows)."""
    Q, L, D = queries.vectors.shape
    K = items.values.shape[1]
    flat = _tensor(queries.vectors).flatten(0, 1)
    step = max(1, _BLOCK // (K * max(D, Q * L)))
    for start in range(first, last, step):
        stop = min(start + step, last)
        part = slice(start, stop) if rows is None else rows[start:stop]
        values = _tensor(items.values[part]).float()
        # (K, D) of each item -> (Q, L, K, n): the items innermost, as `reduce` wants them.
        products = flat @ values.transpose(0, 1).flatten(0, 1).T
        products = products.view(Q, L, K, stop - start)
        if items.norms is not None and queries.within is not None and queries.outside is not None:
            # With sketched vectors -> upper bounds of those with the vectors themselves.
            scale, error, residual = _tensor(items.norms[part]).permute(1, 2, 0)
            within, outside = (torch.from_numpy(x)[:, :, None, None] for x in (queries.within, queries.outside))
            products = (products * scale + within * error + outside * residual).clamp(max=queries.cap)
        out[:, start:stop] = scoring.reduce_products(products, bounds=items.norms is not None).numpy()


def _tensor(x: NDArray[Any]) -> Tensor:
    """torch warns of memory it might write to, such as a memory map's; nothing here writes."""
    return torch.from_numpy(x if x.flags.writeable else x.copy())


def score_exactly(items: ScanItems, queries: Float32, scoring: Scoring, rows: Sequence[Int64]) -> Float64:
    """(n,) scores of each query (L, D) with its own rows of the items, one query after the other."""
    counts = [len(those) for those in rows]
    every = rows[0] if len(rows) == 1 else np.concatenate(rows)
    library = native.library()
    if library is not None:
        products = np.empty((len(every), items.values.shape[1], queries.shape[1]))
        starts = np.cumsum([0, *counts], dtype=np.int64)
        loops = Native(library, items, ScanQueries(queries), scoring)
        run_in_parts(partial(loops.products, every, starts, products), len(rows), len(rows))
    else:
        pairs = zip(queries, rows, strict=True)
        products = np.concatenate([multiply_exactly(items.values[those], query) for query, those in pairs])
    return score_products(items, queries, scoring, every, counts, products)


def score_products(
    items: ScanItems, queries: Float32, scoring: Scoring, rows: Int64, counts: Sequence[int] | Int64, products: Float64
) -> Float64:
    """From exact inner products (n, K, L) with the rows, of which each query has its count. May overwrite them."""
    if scoring.part.normalises:
        norms = np.repeat(_norms(queries), counts, axis=0)
        products /= _norms(items.values[rows])[:, :, None] * norms[:, None]
    return scoring.reduce_exactly(products)


def multiply_exactly(items: NDArray[Any], query: Float32) -> Float64:
    """(n, K, D), (L, D) -> (n, K, L) inner products, as the native loop makes them."""
    n, K, _ = items.shape
    step = max(1, _EXACT_BLOCK // (K * max(items.shape[2], _LANES * len(query))))
    x = _lanes(query)
    out = np.empty((n, K, len(query)))
    for start in range(0, n, step):
        y = _lanes(items[start : start + step])[:, :, None]
        sums = np.zeros((*y.shape[:2], len(query), _LANES))
        for part in range(x.shape[1]):
            sums += y[..., part, :] * x[:, part]
        halves = sums[..., :4] + sums[..., 4:]
        quarters = halves[..., :2] + halves[..., 2:]
        out[start : start + step] = quarters[..., 0] + quarters[..., 1]
    return out


def _lanes(x: NDArray[Any]) -> Float64:
    """(..., D) -> (..., D / 8, 8), with zeros after the last."""
    padded = np.zeros((*x.shape[:-1], -(-x.shape[-1] // _LANES) * _LANES))
    padded[..., : x.shape[-1]] = x
    return padded.reshape(*x.shape[:-1], -1, _LANES)


def _norms(x: NDArray[Any]) -> Float64:
    return np.asarray(np.sqrt(np.square(x, dtype=np.float64).sum(-1)))
