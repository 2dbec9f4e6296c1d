"""Whether bounds pay for these vectors, and how long the sketches should be: measured, not guessed.

Vectors that share a few strong directions are told apart by a short sketch; where every direction matters alike no
sketch prunes anything, and plain scanning is the best there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import scan
from polysem.search.engine.scan_data import Level, Probe
from polysem.search.engine.scoring import Scoring
from polysem.search.engine.sketch import probes, sketch

# With fewer items there is nothing to win, not even for many queries at once.
FEWEST = 512
# Items and queries to measure with, and the results that a search is assumed to want.
_SAMPLE, _QUERIES, _K = 16384, 8, 10
_PREFIXES = (32, 64, 96, 128, 192, 256, 384, 512)
# Scattered items cost more than neighbours.
_SCATTERED = 2.0
# Bounds must promise this much of the time of a full scan, or less: queries may be harder than those measured.
_WORTHWHILE = 0.75


@dataclass(frozen=True)
class Plan:
    """The widths of the sketches, each for those that the one before could not rule out. None: scan everything."""

    prefixes: tuple[int, ...] = ()
    cost: float = 1.0
    """What a search is expected to take, in full scans."""
    kept: tuple[float, ...] = ()
    """The share of all items that each sketch could not rule out, where it was measured."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        return cls(tuple(found["prefixes"]), found["cost"], tuple(found["kept"]))


def measure(
    vectors: NDArray[Any],
    rotation: NDArray[np.float64],
    scoring: Scoring,
    rng: np.random.Generator,
    asked: NDArray[Any] | None = None,
) -> Plan:
    """The plan that is quickest for queries drawn from the vectors and, if given, for sets `asked` (n, L, D).

    Texts lie elsewhere than images: bounds that serve items as queries may rule out nothing for captions.
    """
    N, _, D = vectors.shape
    prefixes = [p for p in _PREFIXES if p <= D]
    if N < FEWEST or not prefixes:
        return Plan()
    drawn = rng.permutation(N)[: min(N, _SAMPLE + 2 * _QUERIES)]
    sample = np.ascontiguousarray(vectors[np.sort(drawn[2 * _QUERIES :])])
    kinds = [_mixtures(vectors[drawn[: 2 * _QUERIES]].astype(np.float32))]
    if asked is not None and len(asked):
        kinds.append(np.ascontiguousarray(asked[:_QUERIES], dtype=np.float32))
    longest = 1.02

    full, levels = Level(sample), sketch(sample, rotation, prefixes)
    full_seconds = _seconds(partial(scan.one, full, Probe(kinds[0]).one(0), scoring))
    # As rare in the sample as the k-th best is among all.
    rank = max(1, round(_K * len(sample) / N))
    left: dict[int, list[float]] = {p: [] for p in prefixes}
    seconds: dict[int, float] = {}
    for queries in kinds:
        plain, forms = Probe(queries), probes(queries, rotation, prefixes, longest)
        for q in range(len(queries)):
            scores = scan.one(full, plain.one(q), scoring)
            threshold = np.partition(scores, len(sample) - rank)[len(sample) - rank]
            for p, level, form in zip(prefixes, levels, forms, strict=True):
                left[p].append(float((scan.one(level, form.one(q), scoring) >= threshold).mean()))
        for p, level, form in zip(prefixes, levels, forms, strict=True):
            seconds.setdefault(p, _seconds(partial(scan.one, level, form.one(0), scoring)) / full_seconds)
    kept = {p: float(np.mean(shares)) for p, shares in left.items()}

    def cost(first: int, second: int | None = None) -> float:
        if second is None:
            return seconds[first] + _SCATTERED * kept[first]
        return seconds[first] + _SCATTERED * (kept[first] * seconds[second] + kept[second])

    choices = [(p,) for p in prefixes] + [(p, q) for p in prefixes for q in prefixes if q > p]
    best = min(choices, key=lambda choice: cost(*choice))
    if cost(*best) > _WORTHWHILE:
        return Plan()
    return Plan(best, cost(*best), tuple(kept[p] for p in best))


def _mixtures(sets: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sets drawn towards others: a query is seldom as close to its answers as items are to each other."""
    half = len(sets) // 2
    mixed = sets[:half] + 0.8 * sets[half:]
    unit: NDArray[np.float32] = mixed / np.linalg.norm(mixed, axis=-1, keepdims=True)
    return unit


def _seconds(run: Callable[[], object]) -> float:
    """The least of a few, in time of the processor: what others do on the machine counts as little as possible."""
    times = []
    for _ in range(5):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return max(min(times), 1e-9)
