"""One segment made ready for search: its engine with sketches and its candidate index, whatever of it is damaged.

Both accelerators are built once for each large segment and stored beside it (`build_accelerators`). The candidate index
of the fast mode holds one vector for each item, the mean of its set, in faiss: by Jensen's inequality the inner product
of two means bounds smooth-Chamfer from below and follows it closely, so the items whose means are closest to the
query's are the right ones to re-score exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from polysem.progress import Progress
from polysem.search.engine import Engine, SketchPlan
from polysem.search.engine.scan import score_exactly
from polysem.search.engine.scoring import Float32, Float64, Int64, Mask, find_scoring, mean_vectors, similarity_scores
from polysem.search.store import Damage, SearchError, Segment, SegmentView, Snapshot, Store
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
        stored = open_attached(self._view, ENGINE, verify=True)
        if stored is not None:
            return Engine.restore(self.vectors, stored.about, stored.arrays)
        return Engine.build(self._safe_vectors, self._similarity, plan=SketchPlan())

    @cached_property
    def means(self) -> Any:
        """The candidate index, of faiss."""
        stored = open_attached(self._view, MEANS, verify=True)
        if stored is None:
            return build_mean_index(self._safe_vectors)
        return faiss.deserialize_index(np.asarray(stored.arrays["index"]))

    def scores(self, query: Float32, rows: Int64) -> Float64:
        """Exact scores of one query (L, D) with these rows."""
        if self.engine is not None:
            return score_exactly(self.engine.full, query[None], self.engine.scoring, [rows])
        return similarity_scores(self.vectors[rows], query, self._similarity)


def list_missing(view: SegmentView, similarity: Mapping[str, Any]) -> list[str]:
    """Names of the accelerators that should be attached to a segment and are not."""
    wanted = [ENGINE] if view.rows >= MIN_SKETCHED and find_scoring(similarity) is not None else []
    wanted += [MEANS] if view.rows >= MIN_ATTACHED else []
    return [name for name in wanted if open_attached(view, name) is None]


def open_attached(view: SegmentView, name: str, verify: bool = False) -> Segment | None:
    """What is attached to a segment; None if it is missing or damaged. verify: read all of it to be sure."""
    try:
        stored = view.attached(name)
    except SearchError:
        return None
    return None if stored is None or (verify and stored.verify()) else stored


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
                engine = Engine.build(view.vectors, similarity, like=_similar_engine(snapshot, view), queries=queries)
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
