"""Exact scores: float64, from the vectors as stored, the same to the last bit on every path.

A product of two float32 is exact in float64, so an inner product depends on nothing but the order of its sums, and that
order is fixed here: eight partial sums, each over every eighth dimension, then halves added to halves. The native
loop follows it, so both give the same bits; what comes after the products is `Scoring.exact` for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import native
from polysem.search.engine.native import Native
from polysem.search.engine.scan_data import ScanItems, ScanQueries, run_in_parts
from polysem.search.engine.scoring import Scoring

_LANES = 8
# Numbers of a block of candidates, to bound the memory that ties can ask for.
_BLOCK = 1 << 20


def scores(
    items: ScanItems, queries: NDArray[np.float32], scoring: Scoring, rows: Sequence[NDArray[np.int64]]
) -> NDArray[np.float64]:
    """(n,) scores of each query (L, D) with its own rows of the items, one query after the other."""
    counts = [len(those) for those in rows]
    every = rows[0] if len(rows) == 1 else np.concatenate(rows)
    library = native.library()
    if library is not None:
        products = np.empty((len(every), items.values.shape[1], queries.shape[1]))
        starts = np.array([0, *accumulate(counts)], np.int64)
        loops = Native(library, items, ScanQueries(queries), scoring)
        run_in_parts(
            lambda first, last: loops.products(every, starts, first, last, products), len(rows), most=len(rows)
        )
    else:
        pairs = zip(queries, rows, strict=True)
        products = np.concatenate([inner_products(items.values[those], query) for query, those in pairs])
    return scores_from_products(items, queries, scoring, every, counts, products)


def scores_from_products(
    items: ScanItems,
    queries: NDArray[np.float32],
    scoring: Scoring,
    rows: NDArray[np.int64],
    counts: Sequence[int] | NDArray[np.int64],
    products: NDArray[np.float64],
) -> NDArray[np.float64]:
    """From exact inner products (n, K, L) with the rows, of which each query has its count. May overwrite them."""
    if scoring.normalises:
        norms = np.repeat(_norms(queries), counts, axis=0)
        products /= _norms(items.values[rows])[:, :, None] * norms[:, None]
    return scoring.exact(products)


def inner_products(items: NDArray[Any], query: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n, K, D), (L, D) -> (n, K, L)."""
    n, K, _ = items.shape
    step = max(1, _BLOCK // (K * max(items.shape[2], _LANES * len(query))))
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


def _lanes(x: NDArray[Any]) -> NDArray[np.float64]:
    """(..., D) -> (..., D / 8, 8), with zeros after the last."""
    whole = -(-x.shape[-1] // _LANES) * _LANES
    padded = np.zeros((*x.shape[:-1], whole))
    padded[..., : x.shape[-1]] = x
    return padded.reshape(*x.shape[:-1], -1, _LANES)


def _norms(x: NDArray[Any]) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.sqrt(np.square(x, dtype=np.float64).sum(-1))
    return norms
