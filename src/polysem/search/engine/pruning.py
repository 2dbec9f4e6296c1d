"""Exact search by pruning: upper bounds from sketches decide which items are scored at all, for one query or many.

Scores and bounds in float32 carry a slack that covers their rounding, so no item that is pruned is among the k best.
What is left is re-scored exactly, in float64 (`exact`).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import exact, native, scan
from polysem.search.engine.native import Candidates, Native
from polysem.search.engine.scan_data import Rows, ScanQueries, TopHits, run_in_parts, top_k, top_k_each
from polysem.search.engine.sketch import PreparedQueries

if TYPE_CHECKING:
    from polysem.search.engine.engine import Engine

# Items with the highest bounds that are scored first to set the threshold, beside twice the number asked for.
PROMISING = 32
# The share of items left by the first bounds above which more bounds are not worth their time.
MAX_LEFT = 1 / 2
# Remaining items scored at once; then twice as many, and so on, while the threshold rises.
_FIRST_BLOCK = 64
# Room for items that a scan cannot tell from the k best. More are rare, and re-scored one query at a time.
_ROOM = 64
# Exact products held at once by a thread.
_PRODUCTS = 1 << 18
# Scoring one item after the other takes this much longer than in a matrix product.
_SINGLY = 3.0
# So does a number of a query when it is rotated, which is done in float64.
_ROTATING = 4.0
# Bounds must promise this much of the time of scoring everything, or less.
_WORTHWHILE = 0.7


class PruningState:
    """The scores of one query so far, in float32, each within `slack` of the exact one.

    threshold: at least k items score this much, so what cannot reach it is pruned, whatever the ties.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.threshold = -np.inf
        self._best = np.empty(0, np.float32)
        self._scored: list[tuple[int, NDArray[np.int64], NDArray[np.float32], float]] = []

    def add(self, segment: int, rows: NDArray[np.int64], scores: NDArray[np.float32], slack: float) -> None:
        """Take in the scores of rows of one engine (`segment` is its number)."""
        self._scored.append((segment, rows, scores, slack))
        lowest = scores[scan.select_largest(scores, self.k)] - np.float32(slack)
        best = np.concatenate([self._best, lowest])
        self._best = best[scan.select_largest(best, self.k)]
        if len(self._best) == self.k:
            self.threshold = float(self._best.min())

    def may_reach(self, bounds: NDArray[np.float32], slack: float) -> NDArray[np.bool_]:
        """Which items may still be among the k best."""
        reaching: NDArray[np.bool_] = bounds >= self.threshold - slack
        return reaching

    def candidates(self) -> dict[int, NDArray[np.int64]]:
        """The rows of each engine that are left to re-score exactly."""
        left: dict[int, list[NDArray[np.int64]]] = {}
        for segment, rows, scores, slack in self._scored:
            left.setdefault(segment, []).append(rows[self.may_reach(scores, slack)])
        return {segment: np.concatenate(rows) for segment, rows in left.items()}

    @property
    def scored(self) -> int:
        return sum(len(rows) for _, rows, _, _ in self._scored)

    def scored_of(self, segment: int) -> int:
        return sum(len(rows) for number, rows, _, _ in self._scored if number == segment)


class EngineScan:
    """One query against one engine: upper bounds first, then the scores of what they cannot rule out.

    Every engine runs `score_promising`, which raises the threshold, before any runs `score_remaining`.
    """

    def __init__(self, segment: int, engine: Engine, queries: PreparedQueries, number: int, rows: Rows = None) -> None:
        """segment: the engine's number; number: the query's among `queries`; rows: the items allowed."""
        self.segment, self.engine, self.rows = segment, engine, rows
        self._queries, self._number = queries, number
        self._bounds, self._sketch = np.empty(0, np.float32), 1

    @property
    def size(self) -> int:
        return len(self.engine.vectors) if self.rows is None else len(self.rows)

    def score_all(self, state: PruningState, scores: NDArray[np.float32] | None = None) -> None:
        """Without bounds; `scores` if they are known already."""
        rows = np.arange(self.size) if self.rows is None else self.rows
        if scores is None:
            scores = scan.scan_query(self.engine.full, self._query(0), self.engine.scoring, self.rows)
        state.add(self.segment, rows, scores, self._slack(0))

    def score_promising(self, state: PruningState, bounds: NDArray[np.float32] | None = None, sketch: int = 1) -> None:
        """Bound all items by a sketch, counted from 1 (`bounds` if they are known already); score the highest."""
        self._sketch = sketch
        first = self.engine.sketches[sketch - 1]
        if bounds is None:
            bounds = scan.scan_query(first, self._query(sketch), self.engine.scoring, self.rows)
        self._bounds = bounds
        promising = scan.select_largest(self._bounds, PROMISING + 2 * state.k)
        self._score(state, self._rows(promising))
        self._bounds[promising] = np.nan  # reaches no threshold, not even that of fewer than k items

    def score_remaining(self, state: PruningState) -> None:
        """Score all that may reach the threshold, the highest bounds first."""
        slack = self._slack(self._sketch)
        left = np.flatnonzero(state.may_reach(self._bounds, slack))
        rows, bounds = self._rows(left), self._bounds[left]
        others = self.engine.sketches[self._sketch :] if len(left) <= MAX_LEFT * self.size else ()
        for number, sketch in enumerate(others, start=self._sketch + 1):
            slack = self._slack(number)
            bounds = scan.scan_query(sketch, self._query(number), self.engine.scoring, rows)
            reaching = state.may_reach(bounds, slack)
            rows, bounds = rows[reaching], bounds[reaching]
        order = np.argsort(-bounds)
        rows, bounds, step = rows[order], bounds[order], _FIRST_BLOCK
        while state.may_reach(bounds[:1], slack).any():
            self._score(state, rows[:step])
            rows, bounds, step = rows[step:], bounds[step:], 2 * step

    def _score(self, state: PruningState, rows: NDArray[np.int64]) -> None:
        scores = scan.scan_query(self.engine.full, self._query(0), self.engine.scoring, rows)
        state.add(self.segment, rows, scores, self._slack(0))

    def _rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return positions if self.rows is None else self.rows[positions]

    def _query(self, sketch: int) -> ScanQueries:
        return self._queries.forms[sketch].select(self._number)

    def _slack(self, sketch: int) -> float:
        return self._queries.slack(self.engine, sketch)


def search_block(
    engine: Engine, vectors: NDArray[np.float32], norm_error: float, k: int, rows: Rows = None
) -> list[TopHits]:
    """All queries (Q, L, D) against all items, or against these rows. All scores must fit in memory."""
    count, size = len(vectors), len(engine.vectors) if rows is None else len(rows)
    k = min(k, size)
    if not k:
        return [TopHits(np.empty(0, np.int64), np.empty(0), 0)] * count
    chosen = _choose_sketch(engine, k)
    queries = engine.prepare(vectors, norm_error, sketched=chosen > 0)
    items = engine.sketches[chosen - 1] if chosen else engine.full
    bounds = scan.scan_batch(items, queries.forms[chosen], engine.scoring)
    library = native.library()
    if library is not None:
        return _rescore(engine, queries, bounds, k, rows, chosen, library)
    pruned = [_prune(engine, queries, q, k, rows, bounds[q], chosen) for q in range(count)]
    candidates, scored = [left for left, _ in pruned], [n for _, n in pruned]
    scores = exact.scores(engine.full, queries.vectors, engine.scoring, candidates)
    return top_k_each(candidates, scores, k, scored)


def search_alone(engine: Engine, queries: PreparedQueries, k: int, library: ctypes.CDLL) -> TopHits:
    """One query against all items of one engine, bounded by the first sketch, in as few steps in Python as possible."""
    k = min(k, len(engine.vectors))
    bounds = scan.scan_query(engine.sketches[0], queries.forms[1], engine.scoring)
    (hits,) = _rescore(engine, queries, bounds[None], k, None, 1, library)
    engine.record_pruning(hits.scored, len(engine.vectors))
    return hits


def _choose_sketch(engine: Engine, k: int) -> int:
    """The sketch, counted from 1, whose bounds and what they leave to score cost the least; 0: scan everything."""
    N, K, D = engine.vectors.shape
    if not engine.sketches or 4 * k > N:
        return 0
    rotating = _ROTATING * engine.sketches[-1].width / (N * K)
    kept = engine.plan.kept or (0.0,) * len(engine.sketches)  # a plan made by hand is taken at its word
    costs = [sketch.width / D + _SINGLY * share + rotating for sketch, share in zip(engine.sketches, kept, strict=True)]
    return 1 + int(np.argmin(costs)) if min(costs) < _WORTHWHILE else 0


def _rescore(
    engine: Engine,
    queries: PreparedQueries,
    bounds: NDArray[np.float32],
    k: int,
    rows: Rows,
    chosen: int,
    library: ctypes.CDLL,
) -> list[TopHits]:
    """`_prune` natively, for every query, and the exact scores of the candidates that it leaves."""
    count, size = bounds.shape
    if rows is not None:
        size, excluded = len(rows), np.ones(size, bool)
        excluded[rows] = False
        bounds[:, excluded] = -np.inf
    arrays, order = [engine.full, *engine.sketches], [0]
    if chosen:
        order = [*range(chosen + 1, len(arrays)), 0]
    loops = [Native(library, arrays[i], queries.forms[i], engine.scoring) for i in order]
    slacks = [queries.slack(engine, chosen, many=True), *(queries.slack(engine, number) for number in order)]
    ranks = k, min(size, PROMISING + 2 * k) if chosen else 0, k + _ROOM
    positions, scores, scored = np.empty((count, k), np.int64), np.empty((count, k)), np.empty(count, np.int64)
    overfull: list[int] = []

    def rescore(first: int, last: int) -> None:
        left = Candidates.find(
            library, loops, bounds, [*slacks, queries.rounding(engine)], ranks, (first, last), scored
        )
        counts = np.diff(left.starts)
        exactly = exact.scores_from_products(
            engine.full, queries.vectors[first:last], engine.scoring, left.rows, counts, left.products
        )
        left.sort(library, exactly, positions[first:last], scores[first:last])
        overfull.extend((first + np.flatnonzero(counts == 0)).tolist())

    pairs = engine.vectors.shape[1] * queries.vectors.shape[1]
    run_in_parts(rescore, count, most=count, largest=max(1, _PRODUCTS // (ranks[2] * pairs)))
    each = scored.tolist() if chosen else [size] * count
    hits = [TopHits(*those) for those in zip(positions, scores, each, strict=True)]
    for q in overfull:
        left, full = _prune(engine, queries, q, k, rows)
        exactly = exact.scores(engine.full, queries.vectors[q : q + 1], engine.scoring, [left])
        hits[q] = top_k(left, exactly, k, full)
    return hits


def _prune(
    engine: Engine,
    queries: PreparedQueries,
    number: int,
    k: int,
    rows: Rows,
    bounds: NDArray[np.float32] | None = None,
    chosen: int = 0,
) -> tuple[NDArray[np.int64], int]:
    """One query's candidates, and how many were scored to find them. bounds: of all items, by the sketch chosen."""
    state, one = PruningState(k), EngineScan(0, engine, queries, number, rows)
    known = bounds if bounds is None or rows is None else bounds[rows]
    if chosen and known is not None:
        one.score_promising(state, known, chosen)
        one.score_remaining(state)
    else:
        one.score_all(state, known)
    return state.candidates()[0], state.scored
