"""Exact search by pruning: upper bounds from sketches decide which items are scored at all, for one query or many.

Scores and bounds in float32 carry a slack that covers their rounding, so no item that is pruned is among the k best.
What is left is re-scored exactly, in float64 (`scan.score_exactly`).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from polysem.search.engine import native, scan
from polysem.search.engine.scan import NO_HITS, Rows, ScanQueries, TopHits, run_in_parts, top_k
from polysem.search.engine.scoring import Float32, Int64, Mask
from polysem.search.engine.sketch import project_queries

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


class PreparedQueries:
    """Queries (Q, L, D) for one engine: in the form of its vectors (`forms[0]`) and, if `sketched`, of each sketch."""

    def __init__(self, engine: Engine, vectors: Float32, norm_error: float, *, sketched: bool) -> None:
        self.engine, self.vectors = engine, vectors
        self._norm_error = max(norm_error, engine.norm_error)
        self.forms = [ScanQueries(vectors)]
        if sketched and engine.sketches:
            widths = [sketch.width for sketch in engine.sketches]
            max_norm = 1 + engine.norm_error + 1e-6  # no item's vector is longer
            self.forms += project_queries(vectors, engine.rotation, widths, max_norm)

    def slack(self, number: int | None, *, many: bool = False) -> float:
        """How far scores (number 0) or a sketch's bounds, counted from 1, may be off; many: of `scan.scan_batch`.

        None: scores from exact products, when those are rounded to float32.
        """
        K, L = self.engine.vectors.shape[1], self.vectors.shape[1]
        if number is None:
            return self.engine.scoring.slack(K, L, 0, self._norm_error)
        items = self.engine.sketches[number - 1] if number else self.engine.full
        fixed = scan.count_fixed_sides(items, many=many)
        sizes = K, L, items.width, self._norm_error, scan.rounding(), fixed
        return self.engine.scoring.slack(*sizes, bounds=number > 0)


class PruningState:
    """The scores of one query so far, in float32, each within `slack` of the exact one.

    threshold: at least k items score this much, so what cannot reach it is pruned, whatever the ties.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.threshold = -np.inf
        self._best = np.empty(0, np.float32)
        self._scored: list[tuple[int, Int64, Float32, float]] = []

    def add(self, segment: int, rows: Int64, scores: Float32, slack: float) -> None:
        """Take in the scores of rows of one engine (`segment` is its number)."""
        self._scored.append((segment, rows, scores, slack))
        lowest = scores[scan.select_largest(scores, self.k)] - np.float32(slack)
        best = np.concatenate([self._best, lowest])
        self._best = best[scan.select_largest(best, self.k)]
        if len(self._best) == self.k:
            self.threshold = float(self._best.min())

    def may_reach(self, bounds: Float32, slack: float) -> Mask:
        """Which items may still be among the k best."""
        return np.asarray(bounds >= self.threshold - slack)

    def candidates(self) -> dict[int, Int64]:
        """The rows of each engine that are left to re-score exactly."""
        left: dict[int, list[Int64]] = {}
        for segment, rows, scores, slack in self._scored:
            left.setdefault(segment, []).append(rows[self.may_reach(scores, slack)])
        return {segment: np.concatenate(rows) for segment, rows in left.items()}

    def count_scored(self, segment: int | None = None) -> int:
        return sum(len(rows) for number, rows, _, _ in self._scored if segment in (None, number))


class EngineScan:
    """One query against one engine: upper bounds first, then the scores of what they cannot rule out.

    Every engine runs `score_promising`, which raises the threshold, before any runs `score_remaining`.
    """

    def __init__(self, segment: int, queries: PreparedQueries, number: int, rows: Rows = None) -> None:
        """segment: the engine's number; number: the query's among `queries`; rows: the items allowed."""
        self.segment, self.engine, self.rows = segment, queries.engine, rows
        self._queries, self._number = queries, number
        self._bounds, self._sketch = np.empty(0, np.float32), 1
        self.size = len(self.engine.vectors) if rows is None else len(rows)

    def score_all(self, state: PruningState, scores: Float32 | None = None) -> None:
        """Without bounds; `scores` if they are known already."""
        rows = np.arange(self.size) if self.rows is None else self.rows
        scores = self._scan(0, self.rows) if scores is None else scores
        state.add(self.segment, rows, scores, self._queries.slack(0))

    def score_promising(self, state: PruningState, bounds: Float32 | None = None, sketch: int = 1) -> None:
        """Bound all items by a sketch, counted from 1 (`bounds` if they are known already); score the highest."""
        self._sketch = sketch
        self._bounds = self._scan(sketch, self.rows) if bounds is None else bounds
        promising = scan.select_largest(self._bounds, PROMISING + 2 * state.k)
        self._score(state, self._rows(promising))
        self._bounds[promising] = np.nan  # reaches no threshold, not even that of fewer than k items

    def score_remaining(self, state: PruningState) -> None:
        """Score all that may reach the threshold, the highest bounds first."""
        slack = self._queries.slack(self._sketch)
        left = np.flatnonzero(state.may_reach(self._bounds, slack))
        rows, bounds = self._rows(left), self._bounds[left]
        if len(left) <= MAX_LEFT * self.size:
            for sketch in range(self._sketch + 1, len(self.engine.sketches) + 1):
                slack = self._queries.slack(sketch)
                bounds = self._scan(sketch, rows)
                reaching = state.may_reach(bounds, slack)
                rows, bounds = rows[reaching], bounds[reaching]
        order = np.argsort(-bounds)
        rows, bounds, step = rows[order], bounds[order], _FIRST_BLOCK
        while state.may_reach(bounds[:1], slack).any():
            self._score(state, rows[:step])
            rows, bounds, step = rows[step:], bounds[step:], 2 * step

    def _score(self, state: PruningState, rows: Int64) -> None:
        state.add(self.segment, rows, self._scan(0, rows), self._queries.slack(0))

    def _rows(self, positions: Int64) -> Int64:
        return positions if self.rows is None else self.rows[positions]

    def _scan(self, sketch: int, rows: Rows) -> Float32:
        """Bounds by a sketch, counted from 1, or scores (0)."""
        items = self.engine.sketches[sketch - 1] if sketch else self.engine.full
        return scan.scan_query(items, self._queries.forms[sketch].select(self._number), self.engine.scoring, rows)


def search_block(engine: Engine, vectors: Float32, norm_error: float, k: int, rows: Rows = None) -> list[TopHits]:
    """All queries (Q, L, D) against all items, or against these rows. All scores must fit in memory."""
    k = min(k, len(engine.vectors) if rows is None else len(rows))
    if not k:
        return [NO_HITS] * len(vectors)
    chosen = _choose_sketch(engine, k)
    queries = PreparedQueries(engine, vectors, norm_error, sketched=chosen > 0)
    items = engine.sketches[chosen - 1] if chosen else engine.full
    bounds = scan.scan_batch(items, queries.forms[chosen], engine.scoring)
    library = native.library()
    if library is not None:
        return _rescore(queries, bounds, k, rows, chosen, library)
    return [_prune(queries, q, k, rows, bounds[q], chosen) for q in range(len(vectors))]


def search_alone(queries: PreparedQueries, k: int, library: ctypes.CDLL) -> TopHits:
    """One query against all items of one engine, bounded by the first sketch, in as few steps in Python as possible."""
    engine = queries.engine
    bounds = scan.scan_query(engine.sketches[0], queries.forms[1], engine.scoring)
    (hits,) = _rescore(queries, bounds[None], min(k, len(engine.vectors)), None, 1, library)
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
    queries: PreparedQueries, bounds: Float32, k: int, rows: Rows, chosen: int, library: ctypes.CDLL
) -> list[TopHits]:
    """`_prune` natively, for every query."""
    engine, (count, size) = queries.engine, bounds.shape
    if rows is not None:
        size, excluded = len(rows), np.ones(size, bool)
        excluded[rows] = False
        bounds[:, excluded] = -np.inf
    arrays = [engine.full, *engine.sketches]
    order = [*range(chosen + 1, len(arrays)), 0] if chosen else [0]
    loops = [native.Native(library, arrays[i], queries.forms[i], engine.scoring) for i in order]
    slacks = [queries.slack(chosen, many=True), *map(queries.slack, [*order, None])]
    ranks = k, min(size, PROMISING + 2 * k) if chosen else 0, k + _ROOM
    positions, scores, scored = np.empty((count, k), np.int64), np.empty((count, k)), np.empty(count, np.int64)
    overfull: list[int] = []

    def rescore(first: int, last: int) -> None:
        left, starts, products = native.find_candidates(library, loops, bounds, slacks, ranks, (first, last), scored)
        counts, own = np.diff(starts), queries.vectors[first:last]
        exact = scan.score_products(engine.full, own, engine.scoring, left, counts, products)
        native.sort_candidates(library, (starts, left, exact), positions[first:last], scores[first:last])
        overfull.extend((first + np.flatnonzero(counts == 0)).tolist())

    pairs = engine.vectors.shape[1] * queries.vectors.shape[1]
    run_in_parts(rescore, count, count, largest=max(1, _PRODUCTS // (ranks[2] * pairs)))
    each = scored.tolist() if chosen else [size] * count
    hits = [TopHits(*those) for those in zip(positions, scores, each, strict=True)]
    for q in overfull:
        hits[q] = _prune(queries, q, k, rows)
    return hits


def _prune(
    queries: PreparedQueries, number: int, k: int, rows: Rows, bounds: Float32 | None = None, chosen: int = 0
) -> TopHits:
    """One query by pruning, then exact scores of the candidates left. bounds: of all items, by the sketch chosen."""
    state, one, engine = PruningState(k), EngineScan(0, queries, number, rows), queries.engine
    known = bounds if bounds is None or rows is None else bounds[rows]
    if chosen and known is not None:
        one.score_promising(state, known, chosen)
        one.score_remaining(state)
    else:
        one.score_all(state, known)
    left = state.candidates()[0]
    scores = scan.score_exactly(engine.full, queries.vectors[number : number + 1], engine.scoring, [left])
    return top_k(left, scores, k, state.count_scored())
