"""Verifying an index: all checksums, and the recall of the fast mode against the exact one on the index itself."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from polysem.errors import PolysemError
from polysem.progress import Progress
from polysem.search.backend import CANDIDATES, Backend, Mode
from polysem.search.results import VerifyReport
from polysem.search.store.entries import SIDES

AUDIT = "audit"
"""The name under which the figures are stored beside the index."""
SAMPLE, K = 100, 10
MODES: tuple[Mode, ...] = ("exact", "fast")


def verify_index(backend: Backend, sample: int, progress: Progress | None = None) -> VerifyReport:
    """Check and repair what can be; measure the fast mode, and store the figures where this may write."""
    before = backend.verify(progress)
    damage = backend.repair(before)
    lost: dict[str, list[str]] = {}
    for each in damage:
        lost.setdefault(each.segment, []).extend(backend.damaged_ids(each))
    repaired = sorted({each.segment for each in before} - {each.segment for each in damage})
    try:
        measured, remark = measure_recall(backend, sample, progress), ""
    except PolysemError as error:
        if not damage:
            raise
        return VerifyReport(damage, lost, None, repaired, f"The fast mode could not be measured: {error}")
    if measured is not None and backend.writable:
        try:
            backend.write_value(AUDIT, measured)
        except PolysemError as error:  # the report matters more than storing it
            remark = f"The figures could not be stored: {error}"
    return VerifyReport(damage, lost, measured, repaired, remark)


def measure_recall(backend: Backend, sample: int, progress: Progress | None = None) -> dict[str, Any] | None:
    """recall@10 of fast against exact for every pair of sides that have items, with items as queries.

    A query that is itself among those searched is left out of both rankings. None where there is nothing to search.
    """
    counts = {side: backend.count(side) for side in SIDES if side in backend.manifest.sets}
    sides = [side for side, count in counts.items() if count]
    recall: dict[str, Any] = {}
    samples = {side: backend.sample(side, sample, seed=1) for side in sides}
    done, total = 0, len(sides) * sum(map(len, samples.values()))
    for given, wanted in [(one, other) for one in sides for other in sides]:
        ids, recalls, seconds = samples[given], [], {"exact": 0.0, "fast": 0.0}
        for key, query in zip(ids, backend.vectors(given, ids), strict=True):
            rankings = []
            for mode in MODES:
                start = time.perf_counter()
                ranked = backend.search(wanted, query, K + 1, mode=mode)
                seconds[mode] += time.perf_counter() - start
                rankings.append([item.id for item in ranked.items if (given, key) != (wanted, item.id)][:K])
            exact, fast = rankings
            if exact:
                recalls.append(len(set(exact) & set(fast)) / len(exact))
            done += 1
            if progress is not None:
                progress("verifying", done, total)
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
    stats = backend.stats()
    state = {"candidates": CANDIDATES, "items": stats.by_side, "change": stats.change, "measured": time.time()}
    return {"recall": recall, **state}
