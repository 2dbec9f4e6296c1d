"""How much of the exact answer the fast mode finds, measured on the index itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from polysem.search.backend import CANDIDATES, Backend, Mode
from polysem.search.store import Stats
from polysem.search.store.entries import SIDES

NOTE = "audit"
"""The name under which the figures are kept beside the index."""
SAMPLE = 100
K = 10
MODES: tuple[Mode, ...] = ("exact", "fast")


def measure(
    backend: Backend, sample: int = SAMPLE, progress: Callable[[str, int, int], None] | None = None
) -> dict[str, Any] | None:
    """recall@10 of fast against exact for every pair of sides that have items, with items as queries.

    A query that is itself among those searched is left out of both answers. None where there is nothing to search.
    """
    counts = {side: backend.count(side) for side in SIDES if side in backend.manifest.sets}
    sides = [side for side, count in counts.items() if count]
    found: dict[str, Any] = {}
    pairs = [(asked, sought) for asked in sides for sought in sides]
    for place, (asked, sought) in enumerate(pairs):
        ids = backend.sample(asked, sample, seed=1)
        recalls, seconds = [], {"exact": 0.0, "fast": 0.0}
        for number, (key, query) in enumerate(zip(ids, backend.vectors(asked, ids), strict=True)):
            answers = []
            for mode in MODES:
                start = time.perf_counter()
                hits = backend.search(sought, query, K + 1, mode=mode)
                seconds[mode] += time.perf_counter() - start
                answers.append([item.id for item in hits.items if (asked, key) != (sought, item.id)][:K])
            exact, fast = answers
            if exact:
                recalls.append(len(set(exact) & set(fast)) / len(exact))
            if progress is not None:
                progress("auditing", place * len(ids) + number + 1, len(pairs) * len(ids))
        if recalls:
            found[f"{asked} to {sought}"] = {
                "recall10": float(np.mean(recalls)),
                "worst": float(np.min(recalls)),
                "queries": len(recalls),
                "exact_ms": 1e3 * seconds["exact"] / len(ids),
                "fast_ms": 1e3 * seconds["fast"] / len(ids),
            }
    if not found:
        return None
    items, change = state(backend.stats())
    return {"recall": found, "candidates": CANDIDATES, "items": items, "change": change, "measured": time.time()}


def state(stats: Stats) -> tuple[dict[str, int], int]:
    """What an audit was made of: another state wants another audit."""
    return stats.by_side, stats.change
