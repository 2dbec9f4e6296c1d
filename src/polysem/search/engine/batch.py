"""Many queries at once: one matrix product with the scoring at its end, then each query's own race."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import exact, native, scan
from polysem.search.engine.contest import PROMISING, Contest
from polysem.search.engine.hits import Hits, best, best_of_each
from polysem.search.engine.level import Rows
from polysem.search.engine.native import Finalists, Native
from polysem.search.engine.queries import Queries
from polysem.search.engine.race import Race
from polysem.search.engine.sharing import share

if TYPE_CHECKING:
    from polysem.search.engine.engine import Engine

# Those beside the k best that a scan cannot tell from them. More than this are rare, and found one query at a time.
_ROOM = 64
# Scoring one item after the other takes this much longer than in a matrix product.
_SINGLY = 3.0
# So does a number of a query when it is rotated, which is done in float64.
_ROTATING = 4.0
# Bounds must promise this much of the time of scoring everything, or less.
_WORTHWHILE = 0.7


def search_block(engine: Engine, vectors: NDArray[np.float32], uneven: float, k: int, rows: Rows = None) -> list[Hits]:
    """All queries (Q, L, D) against all items, or against these rows. All scores must fit in memory."""
    count, size = len(vectors), len(engine.vectors) if rows is None else len(rows)
    k = min(k, size)
    if not k:
        return [Hits(np.empty(0, np.int64), np.empty(0), 0)] * count
    chosen = _chosen(engine, k)
    queries = engine.prepare(vectors, uneven, sketched=chosen > 0)
    level = engine.sketches[chosen - 1] if chosen else engine.full
    bounds = scan.many(level, queries.probes[chosen], engine.scoring)
    library = native.library()
    if library is None:
        found = [_race(engine, queries, q, k, rows, bounds[q], chosen) for q in range(count)]
    else:
        found = _finalists(engine, queries, bounds, k, rows, chosen, library)
    finalists, scored = [those for those, _ in found], [n for _, n in found]
    scores = exact.scores(engine.full, queries.vectors, engine.scoring, finalists)
    return best_of_each(finalists, scores, k, scored)


def search_alone(engine: Engine, queries: Queries, k: int, library: ctypes.CDLL) -> Hits:
    """One query against all items of one engine, bounded by the first sketch, with as few steps in Python as can be."""
    k = min(k, len(engine.vectors))
    bounds = scan.one(engine.sketches[0], queries.probes[1], engine.scoring)
    ((rows, scored),) = _finalists(engine, queries, bounds[None], k, None, 1, library)
    engine.learn(scored, len(engine.vectors))
    return best(rows, exact.scores(engine.full, queries.vectors, engine.scoring, [rows]), k, scored)


def _chosen(engine: Engine, k: int) -> int:
    """The sketch, counted from 1, whose bounds cost the least together with scoring what they leave; 0: none does."""
    N, K, D = engine.vectors.shape
    if not engine.sketches or 4 * k > N:
        return 0
    rotating = _ROTATING * engine.sketches[-1].width / (N * K)
    kept = engine.plan.kept or (0.0,) * len(engine.sketches)  # a plan made by hand is taken at its word
    costs = [level.width / D + _SINGLY * share + rotating for level, share in zip(engine.sketches, kept, strict=True)]
    return 1 + int(np.argmin(costs)) if min(costs) < _WORTHWHILE else 0


def _finalists(
    engine: Engine, queries: Queries, bounds: NDArray[np.float32], k: int, rows: Rows, chosen: int, library: ctypes.CDLL
) -> list[tuple[NDArray[np.int64], int]]:
    """`_race` natively, for every query."""
    count, size = bounds.shape
    if rows is not None:
        size, excluded = len(rows), np.ones(size, bool)
        excluded[rows] = False
        bounds[:, excluded] = -np.inf
    found = Finalists(library, count, k + _ROOM)
    levels, order = [engine.full, *engine.sketches], [0]
    if chosen:
        order = [*range(chosen + 1, len(levels)), 0]
    loops = [Native(library, levels[i], queries.probes[i], engine.scoring) for i in order]
    slacks = [queries.slack(engine, chosen, many=True), *(queries.slack(engine, number) for number in order)]
    promising = min(size, PROMISING + 2 * k) if chosen else 0
    share(partial(found.find, loops, bounds, slacks, k, promising), count, most=count)
    return [
        (those, int(scored) if chosen else size) if those is not None else _race(engine, queries, q, k, rows)
        for q, (those, scored) in enumerate(zip(found, found.scored, strict=True))
    ]


def _race(
    engine: Engine,
    queries: Queries,
    number: int,
    k: int,
    rows: Rows,
    bounds: NDArray[np.float32] | None = None,
    chosen: int = 0,
) -> tuple[NDArray[np.int64], int]:
    """One query's finalists, and how many were scored for them. bounds: of all items, by the sketch chosen."""
    race, contest = Race(k), Contest(0, engine, queries, number, rows)
    known = bounds if bounds is None or rows is None else bounds[rows]
    if chosen and known is not None:
        contest.open(race, known, chosen)
        contest.close(race)
    else:
        contest.score_all(race, known)
    return race.finalists()[0], race.scored
