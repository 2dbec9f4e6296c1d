"""Scans: every item against queries, in float32, on all of torch's threads; natively where that was built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polysem.search.engine import native
from polysem.search.engine.native import Native
from polysem.search.engine.scan_data import Rows, ScanItems, ScanQueries, run_in_parts
from polysem.search.engine.scoring import FLOAT32_ROUNDING, Scoring

# Numbers of a block for torch: enough for the matrix product, few enough to stay in a core's cache.
_BLOCK = 1 << 18
# Fewer numbers than this are not worth a second thread.
_SHARE = 1 << 20
# A multiple of the items that the native loops take at once; queries of the usual size that they do.
_STEP, _GROUP = 128, 48


def scan_query(items: ScanItems, queries: ScanQueries, scoring: Scoring, rows: Rows = None) -> NDArray[np.float32]:
    """(n,) scores of one query, or upper bounds where the items are a sketch."""
    count = len(items.values) if rows is None else len(rows)
    scores = np.empty((1, count), np.float32)
    library = native.library()
    if library is not None:
        loops = Native(library, items, queries, scoring)
        _share(items, count, lambda first, last: loops.scan(rows, first, last, scores))
    else:
        _share(items, count, partial(_scan_with_torch, items, queries, scoring, rows, scores))
    only: NDArray[np.float32] = scores[0]
    return only


def scan_batch(items: ScanItems, queries: ScanQueries, scoring: Scoring) -> NDArray[np.float32]:
    """(Q, N) scores of many queries, or upper bounds."""
    scores = np.empty((len(queries.vectors), len(items.values)), np.float32)
    library = native.library()
    if library is not None:
        loops, (Q, N) = Native(library, items, queries, scoring), scores.shape
        if Q > N:  # the longer side can be shared out more evenly
            parts = Q * queries.vectors.shape[1] * items.width // _SHARE
            run_in_parts(lambda *part: loops.batch(part, (0, N), scores), Q, most=parts, multiple=_GROUP)
        else:
            _share(items, N, lambda *part: loops.batch((0, Q), part, scores))
    else:
        _share(items, len(items.values), partial(_scan_with_torch, items, queries, scoring, None, scores))
    return scores


def select_largest(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The positions of the k largest scores, in no order; of equal ones any."""
    library = native.library()
    if k >= len(scores):
        return np.arange(len(scores))
    if library is not None:
        return native.largest(library, scores, k)
    return np.argpartition(scores, len(scores) - k)[len(scores) - k :].astype(np.int64)


def rounding() -> float:
    """Of one step of the arithmetic in use."""
    return FLOAT32_ROUNDING if native.library() is not None else _torch_rounding()


def count_fixed_sides(items: ScanItems, *, many: bool) -> int:
    """How many factors of its products `scan_batch` (`many`) or `scan_query` rounds to 16 bits natively."""
    if native.library() is None:
        return 0
    if items.norms is not None:
        return 1  # a sketch is whole numbers already
    return 2 if many else 0


def _share(items: ScanItems, count: int, fill: Callable[[int, int], None]) -> None:
    """Call fill(first, last) for parts of so many items."""
    numbers = count * items.values.shape[1] * items.width
    run_in_parts(fill, count, most=numbers // _SHARE, multiple=_STEP)


def _torch_rounding() -> float:
    """torch may be told to multiply with fewer digits."""
    return FLOAT32_ROUNDING if torch.get_float32_matmul_precision() == "highest" else 2.0**-8


@torch.inference_mode()
def _scan_with_torch(
    items: ScanItems,
    queries: ScanQueries,
    scoring: Scoring,
    rows: Rows,
    out: NDArray[np.float32],
    first: int,
    last: int,
) -> None:
    """Fill out[:, first:last], (Q, n): the scores, or upper bounds of them, of items first to last (of rows).

    Block by block, where the native loops are missing.
    """
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
        if items.norms is not None:
            products = _add_error_bounds(products, _tensor(items.norms[part]), queries)
        out[:, start:stop] = scoring.part.reduce(products).numpy()


def _add_error_bounds(products: Tensor, norms: Tensor, queries: ScanQueries) -> Tensor:
    """Products with sketched vectors -> upper bounds of those with the vectors themselves."""
    scale, error, residual = norms.permute(1, 2, 0)
    within, outside = (
        torch.from_numpy(x)[:, :, None, None] for x in (queries.within, queries.outside) if x is not None
    )
    bounds: Tensor = products * scale + within * error + outside * residual
    return bounds.clamp(max=queries.cap)


def _tensor(x: NDArray[Any]) -> Tensor:
    """torch warns of memory it might write to, such as a memory map's; nothing here writes."""
    return torch.from_numpy(x if x.flags.writeable else x.copy())
