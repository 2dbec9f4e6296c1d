"""Sketches: compact int8 codes that bound every inner product from above, and the plan that says which ones pay.

A rotation puts what the vectors share into the first dimensions. A sketch keeps the first p of them as int8 with one
scale per vector, and the norms of what that loses. Then, for a query vector x and an item's y, split by the rotation
into the kept part (x_p, y_p) and the rest (x_r, y_r), with ~y the int8 code of y_p,

    <x, y>  =  <x_p, ~y> + <x_p, y_p - ~y> + <x_r, y_r>  <=  <x_p, ~y> + |x_p| |y_p - ~y| + |x_r| |y_r|

and a similarity that is monotone in the inner products passes the bound on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polysem.search.engine import scan
from polysem.search.engine.scan import ScanItems, ScanQueries
from polysem.search.engine.scoring import Float32, Float64, Scoring

# Vectors that the rotation is learned from, and vectors rotated at once.
_ROTATION_SAMPLE, _BLOCK = 1 << 15, 1 << 14
# Far above what float64 loses in a norm, far below what matters in a bound.
_TINY = 1e-12
# With fewer items there is nothing to win, not even for many queries at once.
MIN_ITEMS = 512
# Items and queries to measure with, and the results that a search is assumed to want.
_SAMPLE, _QUERIES, _K = 16384, 8, 10
_PREFIXES = (32, 64, 96, 128, 192, 256, 384, 512)
# Scattered items cost more than neighbours.
_SCATTERED = 2.0
# Bounds must promise this much of the time of a full scan, or less: queries may be harder than those measured.
_WORTHWHILE = 0.75


def learn_rotation(vectors: NDArray[Any], rng: np.random.Generator) -> Float64:
    """(D, D), orthogonal: principal directions about the origin, strongest first."""
    N, K, D = vectors.shape
    rows = np.sort(rng.choice(N, min(N, max(1, _ROTATION_SAMPLE // K)), replace=False))
    sample = torch.from_numpy(vectors[rows].reshape(-1, D).astype(np.float64))
    _, directions = torch.linalg.eigh(sample.T @ sample)
    return np.ascontiguousarray(directions.flip(1).numpy())


def build_sketches(vectors: NDArray[Any], rotation: Float64, prefixes: Sequence[int]) -> list[ScanItems]:
    """One sketch for each prefix."""
    N, K, D = vectors.shape
    sketches = [ScanItems(np.empty((N, K, p), np.int8), np.empty((N, 3, K), np.float32)) for p in prefixes]
    directions = torch.from_numpy(rotation)[:, : max(prefixes, default=0)].contiguous()
    step = max(1, _BLOCK // K)
    for start in range(0, N, step):
        block = slice(start, start + step)
        y = torch.from_numpy(vectors[block].reshape(-1, D).astype(np.float64))
        rotated, squared = (y @ directions).numpy(), y.square().sum(1).numpy()
        for sketch in sketches:
            codes, norms = _encode(rotated[:, : sketch.width], squared)
            sketch.values[block] = codes.reshape(-1, K, sketch.width)
            if sketch.norms is not None:
                sketch.norms[block] = norms.reshape(3, -1, K).swapaxes(0, 1)
    return sketches


def project_queries(queries: Float32, rotation: Float64, prefixes: Sequence[int], max_norm: float) -> list[ScanQueries]:
    """Queries (Q, L, D) rotated and cut to these prefixes; no item's vector is longer than `max_norm`."""
    x = queries.astype(np.float64)
    squared = _square(x)
    cap = float(np.sqrt(squared.max(initial=0)) * max_norm * (1 + 1e-6))
    directions = torch.from_numpy(rotation)[:, : max(prefixes, default=0)]
    rotated = (torch.from_numpy(x) @ directions).numpy()  # on torch's threads, not on numpy's own
    forms = []
    for prefix in prefixes:
        kept = rotated[..., :prefix]
        kept_squared = _square(kept)
        within, outside = _norm_above(kept_squared), _norm_above(squared - kept_squared)
        forms.append(ScanQueries(kept.astype(np.float32, order="C"), within, outside, cap))
    return forms


def _encode(kept: Float64, squared: Float64) -> tuple[NDArray[np.int8], Float32]:
    """(n, p) -> (n, p) codes and (3, n): scale, norm of the rounding, norm of the rest."""
    scale = (np.abs(kept).max(1) / 127 + _TINY).astype(np.float32)
    codes = np.rint(kept / scale[:, None].astype(np.float64))
    lost = np.square(kept - codes * scale[:, None]).sum(1)
    rest = squared - np.square(kept).sum(1)
    return codes.astype(np.int8), np.stack([scale, _norm_above(lost), _norm_above(rest)])


def _square(x: NDArray[Any]) -> Float64:
    return np.asarray(np.einsum("...d,...d->...", x, x, dtype=np.float64))


def _norm_above(squared: Float64) -> Float32:
    """A float32 no smaller than the root."""
    root = np.sqrt(np.maximum(squared, 0) + _TINY).astype(np.float32)
    return np.nextafter(root, np.float32(np.inf))


@dataclass(frozen=True)
class SketchPlan:
    """The widths of an engine's sketches, each for what the one before could not prune. Empty: scan everything."""

    prefixes: tuple[int, ...] = ()
    cost: float = 1.0
    """What a search is expected to take, in full scans."""
    kept: tuple[float, ...] = ()
    """The share of all items that each sketch could not prune, where it was measured."""


def measure_plan(
    vectors: NDArray[Any],
    rotation: Float64,
    scoring: Scoring,
    rng: np.random.Generator,
    queries: NDArray[Any] | None = None,
) -> SketchPlan:
    """The plan that is quickest for queries drawn from the vectors and, if given, for other `queries` (n, L, D).

    Vectors that share a few strong directions are told apart by a short sketch; where every direction matters alike no
    sketch prunes anything, and plain scanning is best. So it is measured. Texts lie elsewhere than images: bounds that
    prune for items as queries may prune nothing for captions.
    """
    N, _, D = vectors.shape
    prefixes = [p for p in _PREFIXES if p <= D]
    if N < MIN_ITEMS or not prefixes:
        return SketchPlan()
    drawn = rng.permutation(N)[: min(N, _SAMPLE + 2 * _QUERIES)]
    sample = np.ascontiguousarray(vectors[np.sort(drawn[2 * _QUERIES :])])
    # Items mixed with others: a query is seldom as close to its answers as items are to each other.
    some = vectors[drawn[: 2 * _QUERIES]].astype(np.float32)
    mixed = some[: len(some) // 2] + 0.8 * some[len(some) // 2 :]
    kinds = [mixed / np.linalg.norm(mixed, axis=-1, keepdims=True)]
    if queries is not None and len(queries):
        kinds.append(np.ascontiguousarray(queries[:_QUERIES], dtype=np.float32))
    max_norm = 1.02

    full, sketches = ScanItems(sample), build_sketches(sample, rotation, prefixes)
    full_seconds = _seconds(partial(scan.scan_query, full, ScanQueries(kinds[0]).select(0), scoring))
    # As rare in the sample as the k-th best is among all.
    rank = max(1, round(_K * len(sample) / N))
    left: dict[int, list[float]] = {p: [] for p in prefixes}
    seconds: dict[int, float] = {}
    for some in kinds:
        plain, forms = ScanQueries(some), project_queries(some, rotation, prefixes, max_norm)
        for q in range(len(some)):
            scores = scan.scan_query(full, plain.select(q), scoring)
            threshold = np.partition(scores, len(sample) - rank)[len(sample) - rank]
            for p, sketch, form in zip(prefixes, sketches, forms, strict=True):
                left[p].append(float((scan.scan_query(sketch, form.select(q), scoring) >= threshold).mean()))
        for p, sketch, form in zip(prefixes, sketches, forms, strict=True):
            seconds.setdefault(p, _seconds(partial(scan.scan_query, sketch, form.select(0), scoring)) / full_seconds)
    kept = {p: float(np.mean(shares)) for p, shares in left.items()}

    def cost(first: int, second: int | None = None) -> float:
        if second is None:
            return seconds[first] + _SCATTERED * kept[first]
        return seconds[first] + _SCATTERED * (kept[first] * seconds[second] + kept[second])

    choices = [(p,) for p in prefixes] + [(p, q) for p in prefixes for q in prefixes if q > p]
    best = min(choices, key=lambda choice: cost(*choice))
    if cost(*best) > _WORTHWHILE:
        return SketchPlan()
    return SketchPlan(best, cost(*best), tuple(kept[p] for p in best))


def _seconds(run: Callable[[], object]) -> float:
    """The least of a few, in processor time: what else the machine does counts as little as possible."""
    times = []
    for _ in range(5):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return max(min(times), 1e-9)
