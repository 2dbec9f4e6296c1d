"""Many queries at once: one matrix product with the scoring at its end, then each query's own race."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import exact, native, scan
from polysem.search.engine.contest import PROMISING, Contest
from polysem.search.engine.native import Finalists, Native
from polysem.search.engine.queries import Queries
from polysem.search.engine.race import Race
from polysem.search.engine.scan_data import Rows
from polysem.search.engine.sharing import share
from polysem.search.engine.top_k import Hits, best, best_of_each

if TYPE_CHECKING:
    from polysem.search.engine.engine import Engine

# Those beside the k best that a scan cannot tell from them. More than this are rare, and found one query at a time.
_ROOM = 64
# Exact products held at once by a thread.
_PRODUCTS = 1 << 18
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
    if library is not None:
        return _decide(engine, queries, bounds, k, rows, chosen, library)
    found = [_race(engine, queries, q, k, rows, bounds[q], chosen) for q in range(count)]
    finalists, scored = [those for those, _ in found], [n for _, n in found]
    scores = exact.scores(engine.full, queries.vectors, engine.scoring, finalists)
    return best_of_each(finalists, scores, k, scored)


def search_alone(engine: Engine, queries: Queries, k: int, library: ctypes.CDLL) -> Hits:
    """One query against all items of one engine, bounded by the first sketch, with as few steps in Python as can be."""
    k = min(k, len(engine.vectors))
    bounds = scan.one(engine.sketches[0], queries.probes[1], engine.scoring)
    (hits,) = _decide(engine, queries, bounds[None], k, None, 1, library)
    engine.learn(hits.scored, len(engine.vectors))
    return hits


def _chosen(engine: Engine, k: int) -> int:
    """The sketch, counted from 1, whose bounds cost the least together with scoring what they leave; 0: none does."""
    N, K, D = engine.vectors.shape
    if not engine.sketches or 4 * k > N:
        return 0
    rotating = _ROTATING * engine.sketches[-1].width / (N * K)
    kept = engine.plan.kept or (0.0,) * len(engine.sketches)  # a plan made by hand is taken at its word
    costs = [level.width / D + _SINGLY * share + rotating for level, share in zip(engine.sketches, kept, strict=True)]
    return 1 + int(np.argmin(costs)) if min(costs) < _WORTHWHILE else 0


def _decide(
    engine: Engine, queries: Queries, bounds: NDArray[np.float32], k: int, rows: Rows, chosen: int, library: ctypes.CDLL
) -> list[Hits]:
    """`_race` natively, for every query, and the exact scores of those that it leaves."""
    count, size = bounds.shape
    if rows is not None:
        size, excluded = len(rows), np.ones(size, bool)
        excluded[rows] = False
        bounds[:, excluded] = -np.inf
    levels, order = [engine.full, *engine.sketches], [0]
    if chosen:
        order = [*range(chosen + 1, len(levels)), 0]
    loops = [Native(library, levels[i], queries.probes[i], engine.scoring) for i in order]
    slacks = [queries.slack(engine, chosen, many=True), *(queries.slack(engine, number) for number in order)]
    ranks = k, min(size, PROMISING + 2 * k) if chosen else 0, k + _ROOM
    positions, scores, scored = np.empty((count, k), np.int64), np.empty((count, k)), np.empty(count, np.int64)
    crowded: list[int] = []

    def decide(first: int, last: int) -> None:
        found = Finalists.find(
            library, loops, bounds, [*slacks, queries.rounding(engine)], ranks, (first, last), scored
        )
        counts = np.diff(found.starts)
        exactly = exact.of_products(
            engine.full, queries.vectors[first:last], engine.scoring, found.rows, counts, found.products
        )
        found.order(library, exactly, positions[first:last], scores[first:last])
        crowded.extend((first + np.flatnonzero(counts == 0)).tolist())

    pairs = engine.vectors.shape[1] * queries.vectors.shape[1]
    share(decide, count, most=count, largest=max(1, _PRODUCTS // (ranks[2] * pairs)))
    each = scored.tolist() if chosen else [size] * count
    hits = [Hits(*those) for those in zip(positions, scores, each, strict=True)]
    for q in crowded:
        left, full = _race(engine, queries, q, k, rows)
        exactly = exact.scores(engine.full, queries.vectors[q : q + 1], engine.scoring, [left])
        hits[q] = best(left, exactly, k, full)
    return hits


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
