"""Scans with torch, block by block: what runs where the native loops are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polysem.search.engine.scan_data import Level, Probe, Rows
from polysem.search.engine.scoring import FLOAT32_ROUNDING, Scoring

# Numbers of a block: enough for the matrix product, few enough to stay in a core's cache.
_BLOCK = 1 << 18


def rounding() -> float:
    """torch may be told to multiply with fewer digits."""
    return FLOAT32_ROUNDING if torch.get_float32_matmul_precision() == "highest" else 2.0**-8


def scan(
    level: Level, probe: Probe, scoring: Scoring, rows: Rows, first: int, last: int, out: NDArray[np.float32]
) -> None:
    """Fill out[:, first:last], (Q, n): the scores, or upper bounds of them, of items first to last (of rows)."""
    Q, L, D = probe.vectors.shape
    K = level.values.shape[1]
    queries = _tensor(probe.vectors).flatten(0, 1)
    step = max(1, _BLOCK // (K * max(D, Q * L)))
    for start in range(first, last, step):
        stop = min(start + step, last)
        part = slice(start, stop) if rows is None else rows[start:stop]
        items = _tensor(level.values[part]).float()
        # (K, D) of each item -> (Q, L, K, n): the items innermost, as `reduce` wants them.
        products = queries @ items.transpose(0, 1).flatten(0, 1).T
        products = products.view(Q, L, K, stop - start)
        if level.side is not None:
            products = _loosen(products, _tensor(level.side[part]), probe)
        out[:, start:stop] = scoring.part.reduce(products).numpy()


def _loosen(products: Tensor, side: Tensor, probe: Probe) -> Tensor:
    """Products with sketched vectors -> upper bounds of those with the vectors themselves."""
    scale, error, residual = side.permute(1, 2, 0)
    within, outside = (torch.from_numpy(x)[:, :, None, None] for x in (probe.within, probe.outside) if x is not None)
    bounds: Tensor = products * scale + within * error + outside * residual
    return bounds.clamp(max=probe.cap)


def _tensor(x: NDArray[Any]) -> Tensor:
    """torch warns of memory it might write to, such as a memory map's; nothing here writes."""
    return torch.from_numpy(x if x.flags.writeable else x.copy())
