"""The recall of the fast mode against the exact one, measured on the index itself."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from polysem.progress import Progress
from polysem.search.backend import CANDIDATES, Backend, Mode
from polysem.search.store import Stats
from polysem.search.store.entries import SIDES

NAME = "audit"
"""The name under which the figures are stored beside the index."""
SAMPLE = 100
K = 10
MODES: tuple[Mode, ...] = ("exact", "fast")


def measure(backend: Backend, sample: int = SAMPLE, progress: Progress | None = None) -> dict[str, Any] | None:
    """recall@10 of fast against exact for every pair of sides that have items, with items as queries.

    A query that is itself among those searched is left out of both rankings. None where there is nothing to search.
    """
    counts = {side: backend.count(side) for side in SIDES if side in backend.manifest.sets}
    sides = [side for side, count in counts.items() if count]
    recall: dict[str, Any] = {}
    pairs = [(given, wanted) for given in sides for wanted in sides]
    for number, (given, wanted) in enumerate(pairs):
        ids = backend.sample(given, sample, seed=1)
        recalls, seconds = [], {"exact": 0.0, "fast": 0.0}
        for done, (key, query) in enumerate(zip(ids, backend.vectors(given, ids), strict=True), start=1):
            rankings = []
            for mode in MODES:
                start = time.perf_counter()
                ranked = backend.search(wanted, query, K + 1, mode=mode)
                seconds[mode] += time.perf_counter() - start
                rankings.append([item.id for item in ranked.items if (given, key) != (wanted, item.id)][:K])
            exact, fast = rankings
            if exact:
                recalls.append(len(set(exact) & set(fast)) / len(exact))
            if progress is not None:
                progress("auditing", number * len(ids) + done, len(pairs) * len(ids))
        if recalls:
            recall[f"{given} to {wanted}"] = {
                "recall10": float(np.mean(recalls)),
                "worst": float(np.min(recalls)),
                "queries": len(recalls),
                "exact_ms": 1e3 * seconds["exact"] / len(ids),
                "fast_ms": 1e3 * seconds["fast"] / len(ids),
            }
    if not recall:
        return None
    items, change = state_of(backend.stats())
    return {"recall": recall, "candidates": CANDIDATES, "items": items, "change": change, "measured": time.time()}


def state_of(stats: Stats) -> tuple[dict[str, int], int]:
    """What an audit measured: a changed index wants another audit."""
    return stats.by_side, stats.change
