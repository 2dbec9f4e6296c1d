"""The engine: exact top-k search of one array of sets, for one query, many queries, or over several engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError, NonFiniteError, kind
from polysem.search.engine import native, pruning
from polysem.search.engine.scan import SHARE, ScanItems, TopHits, run_in_parts, score_exactly, top_k
from polysem.search.engine.scoring import Float32, Float64, Mask, Scoring, Side
from polysem.search.engine.sketch import MIN_ITEMS, SketchPlan, build_sketches, learn_rotation, measure_plan

# A full scan of fewer items takes a single query about as long as the steps around it.
_FEW = 2048
# With fewer items for each result asked for, bounds have little to prune.
_FEW_PER_HIT = 32
# Scores and numbers of queries held at once in a batch; numbers of vectors checked at once.
_SCORES, _BLOCK = 1 << 25, 1 << 22
# After bounds that pruned too little, a query goes without them; after the next failure two, four, up to this many.
_LONGEST_PAUSE = 32
# Half precision moves a unit vector's norm by less than a tenth of this.
_NORM_ERROR = 0.01


class Engine:
    """Exact search of one array of sets. The array is read in place, never copied: it may be a memory map."""

    def __init__(
        self,
        vectors: NDArray[Any],
        scoring: Scoring,
        plan: SketchPlan,
        rotation: Float64,
        sketches: Sequence[ScanItems],
        norm_error: float,
    ) -> None:
        self.vectors, self.scoring, self.plan = vectors, scoring, plan
        # Not a read-only map of a file, which torch would not take without a copy for every query.
        self.rotation = np.require(rotation, requirements="W")
        self.sketches, self.norm_error = tuple(sketches), norm_error
        self.full = ScanItems(vectors)
        self._pause, self._next_pause = 0, 1

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any],
        similarity: Mapping[str, Any],
        seed: int = 0,
        *,
        plan: SketchPlan | None = None,
        like: Engine | None = None,
        queries: NDArray[Any] | None = None,
        side: Side = "image",
    ) -> Self:
        """Build the sketches of an array.

        Args:
            vectors: (N, K, D) unit vectors, float32 or float16.
            similarity: its config, e.g. {"name": "mil"}.
            seed: of the sample that the rotation and the plan are learned from.
            plan: the sketches to build; by default those that are measured to pay.
            like: an engine whose rotation and plan are taken over, instead of learning them again.
            queries: (n, L, D) sets of the kind that it will be searched with, to measure the plan with.
            side: what the vectors are of, for a similarity that is not symmetric.
        """
        fits = isinstance(vectors, np.ndarray) and vectors.ndim == 3 and vectors.dtype in (np.float32, np.float16)
        if not fits or 0 in vectors.shape[1:]:
            raise InputError(f"An engine takes a float32 or float16 array (items, set size, dim), got {kind(vectors)}.")
        vectors = np.ascontiguousarray(vectors)
        norm_error = max_norm_error(vectors, "item")
        scoring = Scoring.of(similarity, side)
        if scoring.part.single_vectors and vectors.shape[1] != 1:
            name = scoring.part.config["name"]
            raise InputError(f"{name} compares single vectors, got sets of {vectors.shape[1]}. Choose smooth_chamfer.")
        if like is not None:
            if like.vectors.shape[1:] != vectors.shape[1:]:
                raise InputError(f"Sets of {vectors.shape[1:]} cannot be sketched like {like.vectors.shape[1:]}.")
            rotation, plan = like.rotation, like.plan
        else:
            rng = np.random.default_rng(seed)
            learned = len(vectors) >= MIN_ITEMS if plan is None else bool(plan.prefixes)
            rotation = learn_rotation(vectors, rng) if learned and len(vectors) else np.empty((vectors.shape[2], 0))
            plan = plan or measure_plan(vectors, rotation, scoring, rng, queries)
            rotation = np.ascontiguousarray(rotation[:, : max(plan.prefixes, default=0)])
        if max(plan.prefixes, default=0) > vectors.shape[2]:
            raise InputError(f"A plan with prefixes {plan.prefixes} needs wider vectors than {vectors.shape[2]}.")
        return cls(vectors, scoring, plan, rotation, build_sketches(vectors, rotation, plan.prefixes), norm_error)

    def search(self, query: NDArray[Any], k: int, allowed: Mask | None = None, *, brute: bool = False) -> TopHits:
        """The k best for one query (L, D), among the items of the mask `allowed`. brute: without pruning."""
        return search_engines([self], query, k, allowed, brute=brute)

    def search_batch(self, queries: NDArray[Any], k: int, allowed: Mask | None = None) -> list[TopHits]:
        """`search` for many queries (Q, L, D) that share a mask: one matrix product with the scoring at its end.

        Positions and scores are those of `search`, bit for bit; only how many items were scored may differ.
        """
        vectors, norm_error = validate_queries(queries, self.vectors.shape[2])
        validate_k(k)
        rows = None if allowed is None else np.flatnonzero(validate_mask(allowed, len(self.vectors)))
        hits: list[TopHits] = []
        step = max(1, _SCORES // max(len(self.vectors), vectors.shape[1] * vectors.shape[2]))
        for start in range(0, len(vectors), step):
            hits += pruning.search_block(self, vectors[start : start + step], norm_error, k, rows)
        return hits

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """All that `build` learned, without the vectors: a JSON-able dict and arrays."""
        arrays: dict[str, NDArray[Any]] = {"rotation": self.rotation}
        for number, sketch in enumerate(self.sketches):
            if sketch.norms is not None:
                arrays |= {f"sketch{number}": sketch.values, f"side{number}": sketch.norms}
        described = {
            "similarity": dict(self.scoring.part.config),
            "plan": asdict(self.plan),
            "shape": list(self.vectors.shape),
            "uneven": self.norm_error,
            "side": self.scoring.side,
        }
        return described, arrays

    @classmethod
    def restore(cls, vectors: NDArray[Any], described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The engine whose `state` this is, over the same vectors. Reads none of them."""
        if list(vectors.shape) != list(described["shape"]) or not vectors.flags.c_contiguous:
            raise InputError(f"This engine was built for vectors of {described['shape']}, got {vectors.shape}.")
        given = described["plan"]
        plan = SketchPlan(tuple(given["prefixes"]), given["cost"], tuple(given["kept"]))
        sketches = [ScanItems(arrays[f"sketch{i}"], arrays[f"side{i}"]) for i in range(len(plan.prefixes))]
        scoring = Scoring.of(described["similarity"], described.get("side", "image"))
        return cls(vectors, scoring, plan, arrays["rotation"], sketches, described["uneven"])

    def should_prune(self, items: int, k: int) -> bool:
        """Whether to bound before scoring, for one query, this many items and results."""
        if not self.sketches or items < max(_FEW, _FEW_PER_HIT * k):
            return False
        paused = self._pause > 0
        self._pause -= paused
        return not paused

    def record_pruning(self, scored: int, items: int) -> None:
        """Back off where bounds pruned too little: the next queries go without them."""
        if scored <= pruning.MAX_LEFT * items:
            self._next_pause = 1
        else:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)


def search_engines(
    engines: Sequence[Engine], query: NDArray[Any], k: int, allowed: Mask | None = None, *, brute: bool = False
) -> TopHits:
    """The k best of all engines together, as if their arrays were one: positions count on from engine to engine."""
    if not engines:
        raise InputError("search_engines() needs at least one engine.")
    vectors, norm_error = validate_queries(np.asarray(query)[None], engines[0].vectors.shape[2])
    state, starts = pruning.PruningState(validate_k(k)), np.cumsum([0, *(len(engine.vectors) for engine in engines)])
    mask = None if allowed is None else validate_mask(allowed, int(starts[-1]))
    bounded = []
    for segment, engine in enumerate(engines):
        rows = None if mask is None else np.flatnonzero(mask[starts[segment] : starts[segment + 1]])
        size = len(engine.vectors) if rows is None else len(rows)
        bound = not brute and engine.should_prune(size, k)
        queries = pruning.PreparedQueries(engine, vectors, norm_error, sketched=bound)
        library = native.library()
        if bound and library is not None and len(engines) == 1 and rows is None:
            return pruning.search_alone(queries, state.k, library)
        one = pruning.EngineScan(segment, queries, 0, rows)
        if bound:
            one.score_promising(state)
            bounded.append(one)
        elif size:
            one.score_all(state)
    for one in bounded:
        one.score_remaining(state)
    for one in bounded:
        one.engine.record_pruning(state.count_scored(one.segment), one.size)
    positions, scores = [np.empty(0, np.int64)], [np.empty(0)]
    for segment, rows in state.candidates().items():
        positions.append(rows + starts[segment])
        scores.append(score_exactly(engines[segment].full, vectors, engines[segment].scoring, [rows]))
    return top_k(np.concatenate(positions), np.concatenate(scores), k, state.count_scored())


def validate_queries(queries: Any, D: int) -> tuple[Float32, float]:
    """(Q, L, D) as float32, and by how much a norm differs from 1 at most."""
    array = np.asarray(queries)
    if array.ndim != 3 or array.shape[1] == 0 or array.shape[2] != D or array.dtype.kind != "f":
        raise InputError(f"Queries are sets (queries, set size, {D}) by the same model as items; got {kind(array)}.")
    array = np.ascontiguousarray(array, dtype=np.float32)
    return array, max_norm_error(array, "query")


def validate_mask(allowed: Any, N: int) -> Mask:
    array = np.asarray(allowed)
    if array.shape != (N,) or array.dtype != np.bool_:
        raise InputError(f"`allowed` must be a boolean mask of all {N} items, got {kind(array)}.")
    return array


def validate_k(k: int) -> int:
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}.")
    return int(k)


def max_norm_error(vectors: NDArray[Any], what: str) -> float:
    """By how much a norm differs from 1 at most; an error where that is more than storage could explain."""
    library = native.library()
    if library is not None:
        norms, count, parts = [(1.0, 1.0)], vectors.size // vectors.shape[2], vectors.size // SHARE
        run_in_parts(lambda *part: norms.append(native.measure_norms(library, vectors, *part)), count, parts)
        extremes = np.array(norms)
        if (np.abs(extremes - 1) < 2 * _NORM_ERROR).all():
            return float(np.abs(np.sqrt(extremes) - 1).max())
    most, step = 0.0, max(1, _BLOCK // (vectors.shape[1] * vectors.shape[2]))
    for start in range(0, len(vectors), step):
        block = np.asarray(vectors[start : start + step], dtype=np.float32)
        squared = np.einsum("nkd,nkd->nk", block, block, dtype=np.float64)
        wrong = ~(np.abs(squared - 1) < 2 * _NORM_ERROR)
        if wrong.any():
            item, element = np.argwhere(wrong)[0]
            norm = float(np.sqrt(squared[item, element]))
            name = f"vector {element} of {what} {start + item}"
            if not np.isfinite(norm):
                raise NonFiniteError(f"{name.capitalize()} holds NaN or infinite numbers.")
            raise InputError(f"{name.capitalize()} has norm {norm:.4g}; unit vectors are needed. Normalise them first.")
        most = max(most, float(np.abs(np.sqrt(squared) - 1).max(initial=0)))
    return most
