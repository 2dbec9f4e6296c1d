"""Every item of a level against queries, in float32, on all of torch's threads: natively where that was built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from polysem.search.engine import native, torch_scan
from polysem.search.engine.native import Native
from polysem.search.engine.scan_data import Level, Probe, Rows
from polysem.search.engine.scoring import FLOAT32_ROUNDING, Scoring
from polysem.search.engine.sharing import share

# Fewer numbers than this are not worth a second thread.
_SHARE = 1 << 20
# A multiple of the items that the native loops take at once; queries of the usual size that they do.
_STEP, _GROUP = 128, 48


def one(level: Level, probe: Probe, scoring: Scoring, rows: Rows = None) -> NDArray[np.float32]:
    """(n,) scores of one query, or upper bounds where the level is a sketch."""
    count = len(level.values) if rows is None else len(rows)
    scores = np.empty((1, count), np.float32)
    library = native.library()
    if library is not None:
        loops = Native(library, level, probe, scoring)
        _share(level, count, lambda first, last: loops.scan(rows, first, last, scores))
    else:
        _share(level, count, partial(_blocked, level, probe, scoring, rows, scores))
    only: NDArray[np.float32] = scores[0]
    return only


def many(level: Level, probe: Probe, scoring: Scoring) -> NDArray[np.float32]:
    """(Q, N) scores of many queries, or upper bounds."""
    scores = np.empty((len(probe.vectors), len(level.values)), np.float32)
    library = native.library()
    if library is not None:
        loops, (Q, N) = Native(library, level, probe, scoring), scores.shape
        if Q > N:  # the longer side can be shared out more evenly
            parts = Q * probe.vectors.shape[1] * level.width // _SHARE
            share(lambda *part: loops.batch(part, (0, N), scores), Q, most=parts, multiple=_GROUP)
        else:
            _share(level, N, lambda *part: loops.batch((0, Q), part, scores))
    else:
        _share(level, len(level.values), partial(_blocked, level, probe, scoring, None, scores))
    return scores


def largest(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The places of the k largest scores, in no order; of equal ones any."""
    library = native.library()
    if k >= len(scores):
        return np.arange(len(scores))
    if library is not None:
        return native.largest(library, scores, k)
    return np.argpartition(scores, len(scores) - k)[len(scores) - k :].astype(np.int64)


def rounding() -> float:
    """Of one step of the arithmetic in use."""
    return FLOAT32_ROUNDING if native.library() is not None else torch_scan.rounding()


def fixed_sides(level: Level, *, many: bool) -> int:
    """How many sides of its products `many`, or else `one`, rounds to 16 bits natively: sketches are whole already."""
    if native.library() is None:
        return 0
    if level.side is not None:
        return 1
    return 2 if many else 0


def _blocked(
    level: Level, probe: Probe, scoring: Scoring, rows: Rows, scores: NDArray[np.float32], first: int, last: int
) -> None:
    with torch.inference_mode():
        torch_scan.scan(level, probe, scoring, rows, first, last, scores)


def _share(level: Level, count: int, fill: Callable[[int, int], None]) -> None:
    """Call fill(first, last) for parts of so many items."""
    numbers = count * level.values.shape[1] * level.width
    share(fill, count, most=numbers // _SHARE, multiple=_STEP)
