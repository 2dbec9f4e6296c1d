"""Search of one side of a snapshot: over its segments, each with an engine and a candidate index, damaged or not.

Both accelerators are built once for each large segment and stored beside it (`build_accelerators`). The candidate index
of the fast mode holds one vector for each item, the mean of its set, in faiss: by Jensen's inequality the inner product
of two means bounds smooth-Chamfer from below and follows it closely, as it does the soft maximum (by Chebyshev's), so
the items whose means are closest to the query's are the right ones to re-score exactly. Positions of a side count on
from segment to segment.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import faiss
import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from polysem.progress import Progress
from polysem.search.engine import Engine, SketchPlan, TopHits, search_engines
from polysem.search.engine.engine import validate_k, validate_queries
from polysem.search.engine.scan import NO_HITS, score_exactly, top_k
from polysem.search.engine.scoring import Float32, Float64, Int64, Mask, find_scoring, mean_vectors, similarity_scores
from polysem.search.filters import Filter
from polysem.search.store import Damage, IndexedItem, SegmentView, Side, Snapshot, Store
from polysem.search.store.entries import SIDES

ENGINE, MEANS = "engine", "means"
"""Names of the accelerators attached to a segment."""
MIN_SKETCHED, MIN_ATTACHED = 4096, 20_000
"""Rows from which on sketches are built, and the candidate index is an inverted file that is stored: fewer rows are
scanned as fast, and nothing is missed."""
# Cells of an inverted file for the root of the number of items, the share of them that a search probes, and the least.
_CELLS, _PROBED, _MIN_PROBED = 2.0, 1 / 16, 24
# Vectors for each cell that k-means learns from, and rows averaged at once.
_SAMPLE, _BLOCK = 64, 1 << 14
# Sets of the other side that an engine's plan is measured with.
_EXAMPLES = 8
KEPT_FILTERS = 16
"""Filters whose masks are cached."""
# Rows scored at once where nothing can be pruned.
_SCORED_ROWS = 1 << 13
# Where a filter leaves no more than this many items for each candidate, all of them are scored.
_FEW_PER_CANDIDATE = 4


def build_mean_index(vectors: NDArray[Any]) -> Any:
    """faiss over the means of sets (N, K, D): few as they are, many in an inverted file with a byte per dimension."""
    N, _, D = vectors.shape
    if N < MIN_ATTACHED:
        index: Any = faiss.IndexFlatIP(D)
    else:
        cells = int(_CELLS * math.sqrt(N))
        index = faiss.index_factory(D, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
        rows = np.sort(np.random.default_rng(0).permutation(N)[: _SAMPLE * cells])
        index.train(mean_vectors(vectors[rows]))
    for start in range(0, N, _BLOCK):
        index.add(mean_vectors(vectors[start : start + _BLOCK]))
    return index


def search_means(index: Any, query: Float32, count: int, allowed: Mask | None = None) -> tuple[Int64, Float32]:
    """Rows among those allowed whose means are closest to the query's (D,), and how close, best first."""
    share = 1.0
    options: dict[str, Any] = {}
    if allowed is not None:
        share = max(float(allowed.mean()), 1e-9)
        bits = np.packbits(allowed, bitorder="little")
        # It reads `bits`, which must live as long. The stubs know the C++ constructor alone.
        options["sel"] = faiss.IDSelectorBitmap(bits)  # type: ignore[call-arg, arg-type]
    if cells := int(getattr(index, "nlist", 0)):  # none where every mean is compared
        # Where few items are allowed, each cell holds few of them: as many must be scanned as without a filter.
        probed = max(_MIN_PROBED, cells * _PROBED) / share
        options["nprobe"] = min(cells, math.ceil(probed))
        chosen: Any = faiss.SearchParametersIVF(**options)
    else:
        chosen = faiss.SearchParameters(**options) if options else None
    scores, rows = index.search(query[None], min(count, index.ntotal), params=chosen)
    valid = rows[0] >= 0
    return rows[0][valid], scores[0][valid]


class SegmentSearcher:
    """A segment with its accelerators: those attached to it, or else ones built in memory."""

    def __init__(self, view: SegmentView, similarity: Mapping[str, Any], damaged: Iterable[range] = ()) -> None:
        """damaged: rows that are known to be."""
        self._view, self._similarity = view, similarity
        self.is_complete = not list_missing(view, similarity)
        """Whether all accelerators are attached: else it is worth looking again later."""
        self.damaged = np.zeros(view.rows, np.bool_)
        """Rows that must not be searched, because their checksum is wrong."""
        for rows in damaged:
            self.damaged[rows.start : rows.stop] = True
        if not self.is_complete or view.rows < MIN_SKETCHED:
            self.check()  # it will be read in full in any case

    @property
    def vectors(self) -> NDArray[Any]:
        return self._view.vectors

    def check(self) -> bool:
        """Compare all checksums of the vectors; whether new damage was found."""
        before = int(self.damaged.sum())
        for damage in self._view.segment.verify():
            self.damaged[slice(None) if damage.rows is None else slice(damage.rows.start, damage.rows.stop)] = True
        new = int(self.damaged.sum()) > before
        if new:
            for name in ("engine", "means", "_safe_vectors"):
                self.__dict__.pop(name, None)
        return new

    @cached_property
    def _safe_vectors(self) -> NDArray[Any]:
        """The vectors, with unit vectors in place of damaged ones, which are read by scans and masked afterwards."""
        if not self.damaged.any():
            return self.vectors
        copy = self.vectors.copy()
        copy[self.damaged] = 0
        copy[self.damaged, :, 0] = 1
        return copy

    @cached_property
    def engine(self) -> Engine | None:
        """None where inner products do not bound the similarity: then every item is scored."""
        if find_scoring(self._similarity) is None:
            return None
        stored = self._view.open_attached(ENGINE, verify=True)
        if stored is not None:
            return Engine.restore(self.vectors, stored.about, stored.arrays)
        return Engine.build(self._safe_vectors, self._similarity, plan=SketchPlan(), side=self._view.side)

    @cached_property
    def means(self) -> Any:
        """The candidate index, of faiss."""
        stored = self._view.open_attached(MEANS, verify=True)
        if stored is None:
            return build_mean_index(self._safe_vectors)
        return faiss.deserialize_index(np.asarray(stored.arrays["index"]))

    def scores(self, query: Float32, rows: Int64) -> Float64:
        """Exact scores of one query (L, D) with these rows."""
        if self.engine is not None:
            return score_exactly(self.engine.full, query[None], self.engine.scoring, [rows])
        return similarity_scores(self.vectors[rows], query, self._similarity, self._view.side)


def list_missing(view: SegmentView, similarity: Mapping[str, Any]) -> list[str]:
    """Names of the accelerators that should be attached to a segment and are not."""
    wanted = [ENGINE] if view.rows >= MIN_SKETCHED and find_scoring(similarity) is not None else []
    wanted += [MEANS] if view.rows >= MIN_ATTACHED else []
    return [name for name in wanted if view.open_attached(name) is None]


def is_attachment(damage: Damage) -> bool:
    """Whether it concerns an accelerator, which can be built again."""
    return any(damage.segment.endswith(f".{name}.seg") for name in (ENGINE, MEANS))


def build_accelerators(store: Store, progress: Progress | None) -> list[int]:
    """Build and attach the accelerators that are missing; the numbers of the segments that got some."""
    similarity = store.manifest.similarity
    with store.reading() as snapshot:
        views = [view for side in SIDES for view in snapshot.views(side)]
        todo = [(view, names) for view in views if (names := list_missing(view, similarity))]
        for done, (view, names) in enumerate(todo):
            if progress is not None:
                progress("preparing", done, len(todo))
            if ENGINE in names:
                # A few sets of the other side: what this side will mostly be searched with.
                others = [other.vectors for other in views if other.side != view.side and other.rows]
                queries = others[0][:: max(1, len(others[0]) // _EXAMPLES)][:_EXAMPLES] if others else None
                like = _similar_engine(snapshot, view)
                engine = Engine.build(view.vectors, similarity, like=like, queries=queries, side=view.side)
                store.attach(view.number, ENGINE, *engine.state())
            if MEANS in names:
                index = faiss.serialize_index(build_mean_index(view.vectors))
                store.attach(view.number, MEANS, {"faiss": faiss.__version__}, {"index": index})
    if todo:
        # A commit, so that readers in other processes look again. (The name is part of the file format.)
        store.write_value("settled", max(view.number for view, _ in todo))
    return [view.number for view, _ in todo]


def _similar_engine(snapshot: Snapshot, new: SegmentView) -> Engine | None:
    """An engine of the same side that was measured on at least a quarter as many items.

    Its plan is taken over: adding costs what is added, not what is there.
    """
    similarity = snapshot.manifest.similarity
    for view in snapshot.views(new.side):
        if 4 * view.rows >= new.rows and not list_missing(view, similarity):
            engine = SegmentSearcher(view, similarity).engine
            if engine is not None and engine.plan.kept:
                return engine
    return None


class FilterCache:
    """Which rows of each segment pass a filter, as packed bits, kept from one snapshot of a side to the next.

    Rows are immutable and deletes are tombstones, so after a commit only new segments have to be filtered. A snapshot
    that is older than the bits may hold rows deleted since: bits are used where no more rows are dead than now.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._bits: LRUCache[str, dict[int, tuple[int, NDArray[np.uint8]]]] = LRUCache(KEPT_FILTERS)

    def mask(self, snapshot: Snapshot, side: Side, where: Filter) -> Mask:
        """(rows,) of a snapshot that is held: whether each passes. Rows with a tombstone may do so too."""
        views, key = snapshot.views(side), repr(where)  # 1 and true are equal, and mean different things
        dead = {view.number: int.from_bytes(view.dead or b"").bit_count() for view in views}
        with self._guard:
            kept = self._bits.get(key, {}).items()
            known = {number: each for number, each in kept if each[0] <= dead.get(number, -1)}
        if new := dead.keys() - known.keys():
            found = snapshot.filter_rows(side, where, new)
            known |= {number: (dead[number], np.packbits(rows)) for number, rows in found.items()}
        with self._guard:
            self._bits[key] = known
        masks = (np.unpackbits(known[view.number][1], count=view.rows).view(np.bool_) for view in views)
        return np.concatenate([np.empty(0, np.bool_), *masks])


class SideSearcher:
    """All segments of one side at one snapshot."""

    def __init__(self, snapshot: Snapshot, side: Side, segments: list[SegmentSearcher], filters: FilterCache) -> None:
        """segments: one for each view of the side, in order. filters: shared with earlier snapshots."""
        self._snapshot, self._side, self.segments, self._filters = snapshot, side, segments, filters
        starts = np.cumsum([0, *(len(segment.vectors) for segment in segments)]).tolist()
        self._size, self._spans = starts[-1], list(zip(segments, starts, starts[1:], strict=False))
        self._guard = threading.Lock()
        self._masks: LRUCache[str, Mask | None] = LRUCache(KEPT_FILTERS)

    def mask(self, where: Filter | None) -> Mask | None:
        """Which positions can be searched and pass the filter; None for all."""
        key = repr(where)  # 1 and true are equal, and mean different things
        with self._guard:
            if key in self._masks:
                return self._masks[key]
        alive = self._snapshot.mask(self._side)
        if where is not None:
            alive &= self._filters.mask(self._snapshot, self._side, where)
        for segment, start, stop in self._spans:
            alive[start:stop] &= ~segment.damaged
        mask = None if alive.all() else alive
        with self._guard:
            self._masks[key] = mask
        return mask

    def drop_unreadable(self, items: Iterable[IndexedItem]) -> list[IndexedItem]:
        """Those of these items whose vectors can be read."""
        mask = self.mask(None)
        return [item for item in items if item.position >= 0 and (mask is None or mask[item.position])]

    @property
    def unreadable(self) -> int:
        """How many items are lost in damaged rows."""
        if not any(segment.damaged.any() for segment in self.segments):
            return 0
        live = self._snapshot.mask(self._side)
        return sum(int((live[start:stop] & segment.damaged).sum()) for segment, start, stop in self._spans)

    def check(self) -> bool:
        """Verify all segments; whether rows are damaged that were not known to be."""
        damaged = [segment.check() for segment in self.segments]  # all of them, not only up to the first
        if any(damaged):
            with self._guard:
                self._masks.clear()
        return any(damaged)

    def count(self, where: Filter | None) -> int:
        mask = self.mask(where)
        return int(self._size if mask is None else mask.sum())

    def sample(self, count: int, where: Filter | None, seed: int) -> Int64:
        """Up to `count` random positions that pass the filter, ascending."""
        mask = self.mask(where)
        rows = np.arange(self._size) if mask is None else np.flatnonzero(mask)
        if count < len(rows):
            rows = np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))
        return rows

    def search(self, query: NDArray[Any], k: int, where: Filter | None) -> TopHits:
        """The k best for a query (L, D), exactly."""
        mask, count = self.mask(where), validate_k(k)
        if not self.segments:
            return NO_HITS
        engines = [segment.engine for segment in self.segments if segment.engine is not None]
        if engines:
            return search_engines(engines, query, k, mask)
        return self._rescore(self._validate(query), self.sample(self._size, where, 0), count)

    def search_batch(self, queries: NDArray[Any], k: int, where: Filter | None) -> list[TopHits]:
        """`search` for many queries (Q, L, D): the same positions and scores, bit for bit.

        Each segment takes all queries in one go, and the exact scores of its k best merge.
        """
        if not self.segments or find_scoring(self._snapshot.manifest.similarity) is None:
            return [self.search(query, k, where) for query in queries]
        mask, merged = self.mask(where), [NO_HITS] * len(queries)
        for segment, start, stop in self._spans:
            if segment.engine is not None:
                own = segment.engine.search_batch(queries, k, None if mask is None else mask[start:stop])
                for number, (one, other) in enumerate(zip(merged, own, strict=True)):
                    positions = np.concatenate([one.positions, other.positions + start])
                    scores = np.concatenate([one.scores, other.scores])
                    merged[number] = top_k(positions, scores, k, one.scored + other.scored)
        return merged

    def search_fast(self, query: NDArray[Any], k: int, where: Filter | None, candidates: int) -> TopHits:
        """The k best of the items whose means are closest to the query's."""
        mask, vectors, wanted = self.mask(where), self._validate(query), max(candidates, validate_k(k))
        if mask is not None and mask.sum() <= _FEW_PER_CANDIDATE * wanted:
            return self._rescore(vectors, np.flatnonzero(mask), k)
        mean = mean_vectors(vectors)
        rows, products = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for segment, start, stop in self._spans:
            own, close = search_means(segment.means, mean, wanted, None if mask is None else mask[start:stop])
            rows.append(own + start)
            products.append(close)
        best = np.concatenate(rows)[np.argsort(-np.concatenate(products), kind="stable")[:wanted]]
        return self._rescore(vectors, np.sort(best), k)

    def scores(self, query: NDArray[Any], positions: Int64) -> Float64:
        """Exact scores of a query (L, D) with the items at ascending positions."""
        return self._score(self._validate(query), positions)

    def _rescore(self, query: Float32, rows: Int64, k: int) -> TopHits:
        """The k best of these rows, all of which are scored."""
        kept = NO_HITS
        for start in range(0, len(rows), _SCORED_ROWS):
            block = rows[start : start + _SCORED_ROWS]
            positions = np.concatenate([kept.positions, block])
            kept = top_k(positions, np.concatenate([kept.scores, self._score(query, block)]), k, len(rows))
        return kept

    def _score(self, query: Float32, positions: Int64) -> Float64:
        scores = np.empty(len(positions))
        for segment, start, stop in self._spans:
            here = slice(*np.searchsorted(positions, (start, stop)))
            if here.start < here.stop:
                scores[here] = segment.scores(query, positions[here] - start)
        return scores

    def _validate(self, query: NDArray[Any]) -> Float32:
        vectors, _ = validate_queries(np.asarray(query)[None], self._snapshot.manifest.dim)
        return vectors.reshape(vectors.shape[1:])
