"""Compact stand-ins for the vectors that bound every inner product from above.

A rotation puts what the vectors share into the first dimensions. A sketch keeps the first p of them as int8 with one
scale per vector, and the norms of what that loses. Then, for a query vector x and an item's y, split by the rotation
into the kept part (x_p, y_p) and the rest (x_r, y_r), with ~y the int8 stand-in of y_p,

    <x, y>  =  <x_p, ~y> + <x_p, y_p - ~y> + <x_r, y_r>  <=  <x_p, ~y> + |x_p| |y_p - ~y| + |x_r| |y_r|

and a similarity that is monotone in the inner products passes the bound on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polysem.search.engine.scan_data import Level, Probe

# Vectors that the rotation is learned from, and vectors rotated at once.
_SAMPLE, _BLOCK = 1 << 15, 1 << 14
# Far above what float64 loses in a norm, far below what matters in a bound.
_TINY = 1e-12


def learn_rotation(vectors: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float64]:
    """(D, D), orthogonal: principal directions about the origin, strongest first."""
    N, K, D = vectors.shape
    rows = np.sort(rng.choice(N, min(N, max(1, _SAMPLE // K)), replace=False))
    sample = torch.from_numpy(vectors[rows].reshape(-1, D).astype(np.float64))
    _, directions = torch.linalg.eigh(sample.T @ sample)
    return np.ascontiguousarray(directions.flip(1).numpy())


def sketch(vectors: NDArray[Any], rotation: NDArray[np.float64], prefixes: Sequence[int]) -> list[Level]:
    """One level for each prefix."""
    N, K, D = vectors.shape
    levels = [Level(np.empty((N, K, p), np.int8), np.empty((N, 3, K), np.float32)) for p in prefixes]
    directions = torch.from_numpy(rotation)[:, : max(prefixes, default=0)].contiguous()
    step = max(1, _BLOCK // K)
    for start in range(0, N, step):
        block = slice(start, start + step)
        y = torch.from_numpy(vectors[block].reshape(-1, D).astype(np.float64))
        rotated, squared = (y @ directions).numpy(), y.square().sum(1).numpy()
        for level in levels:
            codes, side = _encode(rotated[:, : level.width], squared)
            level.values[block] = codes.reshape(-1, K, level.width)
            if level.side is not None:
                level.side[block] = side.reshape(3, -1, K).swapaxes(0, 1)
    return levels


def probes(
    queries: NDArray[np.float32], rotation: NDArray[np.float64], prefixes: Sequence[int], longest: float
) -> list[Probe]:
    """Queries (Q, L, D) as the sketches of these prefixes see them; no item's vector is longer than `longest`."""
    x = queries.astype(np.float64)
    squared = _squared(x)
    cap = float(np.sqrt(squared.max(initial=0)) * longest * (1 + 1e-6))
    directions = torch.from_numpy(rotation)[:, : max(prefixes, default=0)]
    rotated = (torch.from_numpy(x) @ directions).numpy()  # on torch's threads, not on numpy's own
    found = []
    for prefix in prefixes:
        kept = rotated[..., :prefix]
        kept_squared = _squared(kept)
        within, outside = _norm_above(kept_squared), _norm_above(squared - kept_squared)
        found.append(Probe(kept.astype(np.float32, order="C"), within, outside, cap))
    return found


def _encode(kept: NDArray[np.float64], squared: NDArray[np.float64]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """(n, p) -> (n, p) codes and (3, n): scale, norm of the rounding, norm of the rest."""
    scale = (np.abs(kept).max(1) / 127 + _TINY).astype(np.float32)
    codes = np.rint(kept / scale[:, None].astype(np.float64))
    lost = np.square(kept - codes * scale[:, None]).sum(1)
    rest = squared - np.square(kept).sum(1)
    return codes.astype(np.int8), np.stack([scale, _norm_above(lost), _norm_above(rest)])


def _squared(x: NDArray[Any]) -> NDArray[np.float64]:
    squared: NDArray[np.float64] = np.einsum("...d,...d->...", x, x, dtype=np.float64)
    return squared


def _norm_above(squared: NDArray[np.float64]) -> NDArray[np.float32]:
    """A float32 no smaller than the root."""
    root = np.sqrt(np.maximum(squared, 0) + _TINY).astype(np.float32)
    return np.nextafter(root, np.float32(np.inf))
