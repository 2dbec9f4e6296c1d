"""Many queries at once: one matrix product with the scoring at its end, then each query's own race."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from polysem import threads
from polysem.search.engine import exact, native, scan
from polysem.search.engine.contest import PROMISING, Contest
from polysem.search.engine.hits import Hits, best
from polysem.search.engine.native import Finalists, Native
from polysem.search.engine.queries import Queries
from polysem.search.engine.race import Race

if TYPE_CHECKING:
    from polysem.search.engine.engine import Engine

# Those beside the k best that float32 cannot tell from them. More than this are rare, and found one query at a time.
_ROOM = 64
# Scoring one item after the other takes this much longer than in a matrix product.
_SINGLY = 2.0
# So does a number of a query when it is rotated, which is done in float64.
_ROTATING = 2.5
# Bounds must promise this much of the time of scoring everything, or less.
_WORTHWHILE = 0.7


def search_block(engine: Engine, vectors: NDArray[np.float32], uneven: float, k: int) -> list[Hits]:
    """All queries (Q, L, D) against all items, whose scores must fit in memory."""
    count, k = len(vectors), min(k, len(engine.vectors))
    if not k:
        return [best(np.empty(0, np.int64), np.empty(0), 0, 0)] * count
    chosen = _chosen(engine, k)
    queries = engine.prepare(vectors, uneven, sketched=chosen > 0)
    level = engine.sketches[chosen - 1] if chosen else engine.full
    bounds = scan.many(level, queries.probes[chosen], engine.scoring)
    rows, scored = np.empty(count, object), np.empty(count, np.int64)
    library = native.library()

    if library is not None:
        found = Finalists(library, count, k + _ROOM)
        order = [*range(chosen + 1, len(engine.sketches) + 1), 0] if chosen else []
        levels = [engine.full, *engine.sketches]
        loops = [Native(library, levels[i], queries.probes[i], engine.scoring) for i in order]
        slacks = [queries.slack(engine, levels[i]) for i in (chosen, *order)]
        _share(partial(found.find, loops, bounds, slacks, k, PROMISING + 2 * k), count)
        crowded = []
        for q in range(count):
            rows[q], scored[q] = found.of(q), found.scored[q]
            if rows[q] is None:
                crowded.append(q)
    else:
        crowded = list(range(count))

    def race(first: int, last: int) -> None:
        for q in crowded[first:last]:
            rows[q], scored[q] = _race(engine, queries, q, k, None if library is not None else bounds[q], chosen)

    _share(race, len(crowded))
    scores = exact.scores(engine.full, queries.vectors, engine.scoring, list(rows))
    return [best(those, s, k, int(n)) for those, s, n in zip(rows, scores, scored, strict=True)]


def _chosen(engine: Engine, k: int) -> int:
    """The sketch, counted from 1, whose bounds cost the least together with scoring what they leave; 0: none does."""
    N, K, D = engine.vectors.shape
    if not engine.sketches or 4 * k > N:
        return 0
    rotating = _ROTATING * engine.sketches[-1].width / (N * K)
    kept = engine.plan.kept or (0.0,) * len(engine.sketches)  # a plan made by hand is taken at its word
    costs = [level.width / D + _SINGLY * share + rotating for level, share in zip(engine.sketches, kept, strict=True)]
    return 1 + int(np.argmin(costs)) if min(costs) < _WORTHWHILE else 0


def _race(
    engine: Engine, queries: Queries, number: int, k: int, bounds: NDArray[np.float32] | None, chosen: int
) -> tuple[NDArray[np.int64], int]:
    """One query's finalists, and how many were scored for them."""
    race, contest = Race(k), Contest(0, engine, queries, number)
    if chosen and bounds is not None:
        contest.open(race, bounds, chosen)
        contest.close(race)
    else:
        contest.score_all(race, bounds)
    return race.finalists()[0], race.scored


def _share(run: Callable[[int, int], None], count: int) -> None:
    cpu = torch.device("cpu")
    step = max(1, -(-count // threads.count(cpu)))
    threads.run([partial(run, first, min(first + step, count)) for first in range(0, count, step)], cpu)
