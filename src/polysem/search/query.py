"""One search, step by step, on one snapshot: rank, fuse with words, fold duplicates, cut by relevance, find moments."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from polysem import similarity
from polysem.errors import InputError, NonFiniteError, kind, unknown
from polysem.models.video import find_moment
from polysem.search.backend import CANDIDATES, IndexReader, Mode, RankedItems
from polysem.search.engine.scoring import similarity_scores
from polysem.search.filters import Filter, matches
from polysem.search.relevance import Cut, find_cut
from polysem.search.results import SearchResult, SearchResults
from polysem.search.store import Side
from polysem.search.store.entries import SIDES

BACKGROUND = 2000
"""Random items that a query is compared with to learn what an irrelevant score is."""
PER_RESULT, MOST = 4, 1 << 13
"""Where duplicates are folded: items ranked for each result wanted, and at most: of an index of copies, not all."""
THRESHOLD = 0.8
"""The cosine from which on vectors of near-duplicates are partners."""
FUSION_K, FUSION_DEPTH = 60, 200
"""The constant of reciprocal-rank fusion (Cormack et al. 2009), and how much of each ranking is fused at least."""


@dataclass(frozen=True)
class QueryOptions:
    """The options of a search.

    item: the indexed item that is the query, left out of the results. words: the query text, for hybrid search.
    dedupe: the cosine from which on results are near-duplicates; None to keep them.
    query_side: what the query is, a text or an image; None where that is not known.
    """

    k: int = 10
    find: Side | None = None
    where: Filter | None = None
    mode: Mode | None = None
    candidates: int = CANDIDATES
    relevant: bool | Literal["mark"] = False
    dedupe: float | None = None
    words: str | None = None
    item: tuple[Side, str] | None = None
    query_side: Side | None = None

    def check(self, modes: tuple[str, ...]) -> None:
        """Refuse options that no search can honour."""
        if isinstance(self.k, bool) or not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise InputError(f"k must be at least 1 and a whole number, got {self.k!r}.")
        if self.candidates < 1:
            raise InputError(f"candidates must be at least 1, got {self.candidates!r}.")
        if self.mode is not None and self.mode not in modes:
            raise unknown("mode of search", self.mode, modes)
        if self.find is not None and self.find not in SIDES:
            raise unknown("side of an index", self.find, SIDES)
        if self.words is not None and self.relevant:
            raise InputError("A relevance cut reads similarity scores, hybrid search gives ranks: choose one of them.")


def choose_side(reader: IndexReader, find: Side | None) -> Side:
    """The side to search: the one asked for, else the first that has items."""
    if find is not None:
        return find
    sides = [side for side in SIDES if side in reader.manifest.sets]
    return next((side for side in sides if reader.has_items(side)), sides[0])


def search_many(reader: IndexReader, queries: NDArray[Any], options: QueryOptions) -> list[SearchResults]:
    """`search` for query sets (Q, L, D); in exact mode they share the work of the first ranking."""
    if (options.mode or reader.modes[0]) != "exact":
        return [search(reader, each, options) for each in queries]
    start, side = time.perf_counter(), choose_side(reader, options.find)
    depth = _first_depth(options, reader.count(side, options.where))
    ranked = reader.search_batch(side, queries, depth, where=options.where)
    seconds = (time.perf_counter() - start) / len(ranked)
    results = [search(reader, each, options, first) for each, first in zip(queries, ranked, strict=True)]
    return [replace(each, seconds=each.seconds + seconds) for each in results]


def _first_depth(options: QueryOptions, total: int, inside: int = 0) -> int:
    """How many items the first ranking of a search holds. inside: 1 if the query's own item is among them."""
    wanted = options.k if options.dedupe is None else min(PER_RESULT * options.k, max(MOST, options.k))
    return min(wanted + inside, max(total, 1))


def search(
    reader: IndexReader, query: NDArray[Any], options: QueryOptions, first: RankedItems | None = None
) -> SearchResults:
    """Search one snapshot for a query set (L, D) of unit vectors; every step reads it, so they agree.

    first: the ranking of `_first_depth` items, where it is known already.
    """
    start = time.perf_counter()
    side, where = choose_side(reader, options.find), options.where
    total, inside = reader.count(side, where), 0
    if options.item is not None and options.item[0] == side:  # the query's own item may be one of those searched
        for item in reader.find([options.item[1]], side):
            inside += where is None or matches(where, {**item._asdict(), "label": list(item.labels)})

    def rank(depth: int) -> RankedItems:
        if options.words is not None:
            return _rank_hybrid(reader, side, query, depth, options)
        return reader.search(side, query, depth, where=where, mode=options.mode, candidates=options.candidates)

    ranked = rank(_first_depth(options, total, inside)) if first is None else first
    if options.dedupe is None:
        results, stopped = _make_results(ranked, options.item)[0], None
    else:
        results, ranked, stopped = _rank_distinct(rank, ranked, options, options.dedupe, total, inside)
    results = [replace(result, rank=rank) for rank, result in enumerate(results[: options.k], start=1)]
    cut: Cut | None = None
    if options.relevant:
        background = reader.sample_scores(side, query, BACKGROUND, where=where)
        cut = find_cut(np.array([result.score for result in results]), background, total)
        results = [replace(result, relevant=result.rank <= cut.count) for result in results]
        results = results if options.relevant == "mark" else results[: cut.count]
    results = _add_moments(reader, side, results, query)
    if options.query_side not in (None, side):
        results = _add_matches(reader, side, results, query if options.words is not None else None)
    own = sum((each.side, each.id) == options.item for each in ranked.items)
    return SearchResults(
        results,
        options.mode or reader.modes[0],
        side,
        scored=min(ranked.scored - own, total - inside),
        of=total - inside,
        seconds=time.perf_counter() - start,
        unreadable=ranked.unreadable,
        cut=cut,
        folded_among=stopped,
        hybrid=options.words is not None,
    )


def _make_results(ranked: RankedItems, item: tuple[Side, str] | None) -> tuple[list[SearchResult], NDArray[Any]]:
    """The ranking as results without ranks, but for one item; and their sets."""
    others = [number for number, each in enumerate(ranked.items) if (each.side, each.id) != item]
    results = []
    for number in others:
        of, score = ranked.items[number], float(ranked.scores[number])
        results.append(SearchResult(0, of.id, of.side, score, of.path, of.caption, of.labels, of.metadata))
    return results, ranked.sets[others]


def _rank_distinct(
    rank: Callable[[int], RankedItems],
    ranked: RankedItems,
    options: QueryOptions,
    threshold: float,
    total: int,
    inside: int,
) -> tuple[list[SearchResult], RankedItems, int | None]:
    """The best of each group of near-duplicates, the ranking they come from and, if it ended before k, how deep it was.

    The ranking is made twice as deep until k different results are left, or `MOST` items were looked at.
    """
    most = max(MOST, options.k) + inside
    wanted = min(PER_RESULT * options.k + inside, most)
    while True:
        results, sets = _make_results(ranked, options.item)
        copies: dict[int, list[str]] = {}
        for position, leader in enumerate(group_duplicates(sets, threshold)):
            copies.setdefault(leader, []).extend([results[position].id] if position != leader else [])
        results = [replace(results[leader], duplicates=tuple(own)) for leader, own in copies.items()]
        depth = min(wanted, max(total, 1))
        enough = len(results) >= options.k or depth >= total or len(ranked.items) < depth
        if enough or wanted == most:
            return results, ranked, None if enough else depth
        wanted = min(2 * wanted, most)
        ranked = rank(min(wanted, max(total, 1)))


def _rank_hybrid(
    reader: IndexReader, side: Side, query: NDArray[Any], count: int, options: QueryOptions
) -> RankedItems:
    """Reciprocal-rank fusion of the vector ranking and the word ranking: score = sum of 1 / (60 + rank).

    Each ranking contributes its best `FUSION_DEPTH` items (or `count`); an item that only one of them holds has the
    other's term as 0. Equal sums are in the order of the vector ranking, then of the words.
    """
    depth, where = max(count, FUSION_DEPTH), options.where
    ranked = reader.search(side, query, depth, where=where, mode=options.mode, candidates=options.candidates)
    by_words = reader.search_words(side, str(options.words), depth, where=where)
    items = {item.id: item for item in (*ranked.items, *by_words)}
    fused = dict.fromkeys(items, 0.0)
    for ranking in (ranked.items, by_words):
        for rank, item in enumerate(ranking, start=1):
            fused[item.id] += 1 / (FUSION_K + rank)
    best = sorted(fused, key=lambda key: -fused[key])[:count]
    sets = dict(zip([item.id for item in ranked.items], ranked.sets, strict=True))
    others = [key for key in best if key not in sets]
    sets |= dict(zip(others, reader.vectors(side, others), strict=True)) if others else {}
    arrays = np.stack([sets[key] for key in best]) if best else ranked.sets[:0]
    scores = np.array([fused[key] for key in best], np.float64)
    return RankedItems([items[key] for key in best], scores, arrays, ranked.scored, ranked.unreadable)


def _add_moments(
    reader: IndexReader, side: Side, results: list[SearchResult], query: NDArray[Any]
) -> list[SearchResult]:
    """The same results; those that are videos with the moment whose frames score best against the query set."""
    frames = reader.frames(side, [result.id for result in results])
    if not frames:
        return results
    videos = [result for result in results if result.id in frames]
    sets = np.concatenate([frames[video.id] for video in videos])  # in one go: a call costs more than its scores
    scores = similarity_scores(sets, np.asarray(query, np.float32), reader.manifest.similarity, side)
    curves = np.split(scores, np.cumsum([len(frames[video.id]) for video in videos])[:-1])
    moments = {
        video.id: find_moment(curve, video.metadata.get("duration"))
        for video, curve in zip(videos, curves, strict=True)
    }
    return [replace(result, moment=moments.get(result.id)) for result in results]


def _add_matches(
    reader: IndexReader, side: Side, results: list[SearchResult], query: NDArray[Any] | None
) -> list[SearchResult]:
    """The same results with the probability that each matches the query, where the similarity is calibrated to tell.

    query: scored again, where the results' scores are not the similarity's but those of a fusion.
    """
    config = reader.manifest.similarity
    scores = np.array([result.score for result in results])
    if query is not None and results:
        sets = reader.vectors(side, [result.id for result in results])
        scores = similarity_scores(sets, np.asarray(query, np.float32), config, side)
    matches = similarity.build(**config).match_probabilities(torch.from_numpy(scores))
    if matches is None:
        return results
    return [replace(result, match=match) for result, match in zip(results, matches.tolist(), strict=True)]


def group_duplicates(vectors: NDArray[Any], threshold: float = THRESHOLD) -> list[int]:
    """For each result the position of the better one that it duplicates; its own if there is none.

    Two sets are near-duplicates (copies, and images that were shrunk, cropped or compressed again) if every vector of
    each has a partner in the other with a cosine of at least the threshold:

        min( min over x of max over y of ⟨x, y⟩,  min over y of max over x of ⟨x, y⟩ )  >=  threshold

    It is symmetric, does not depend on the scale of the model's similarity, and for single vectors it is the cosine.
    One vector without a partner tells two images apart. `docs/benchmarks/search.md` says how the default was measured.
    A result is compared with leaders only, results that duplicate nothing better: a chain of small changes does not
    fold its two ends together. vectors: (n, K, D) sets of the results, best first.
    """
    given: NDArray[Any] = np.asarray(vectors)
    if given.ndim != 3 or given.dtype.kind != "f" or 0 in given.shape[1:]:
        raise InputError(f"group_duplicates() takes floating-point sets (results, K, dim), got {kind(given)}.")
    if not 0 < threshold <= 1:
        raise InputError(f"Near-duplicates begin at a cosine above 0 and up to 1, got {threshold}. Try {THRESHOLD}.")
    sets: NDArray[np.float32] = given.astype(np.float32)
    if not np.isfinite(sets).all():
        raise NonFiniteError("Some results' vectors are NaN or infinite: the index is damaged. Encode the items again.")
    lengths = np.linalg.norm(sets, axis=2, keepdims=True)
    # The smallest margin for rounding: an image is a duplicate of itself at a threshold of 1.
    sets *= np.float32(1 + 1e-6) / np.maximum(lengths, np.finfo(np.float32).tiny)
    leaders: list[int] = []
    leader_of: list[int] = []
    for position in range(len(sets)):
        alike = np.flatnonzero(compare_sets(sets[position], sets[leaders]) >= threshold)
        leader_of.append(leaders[alike[0]] if len(alike) else position)
        if not len(alike):
            leaders.append(position)
    return leader_of


def compare_sets(one: NDArray[np.float32], many: NDArray[np.float32]) -> NDArray[np.float32]:
    """(K, D), (n, L, D) unit vectors -> (n,): the cosine that the worst matched vector of either set still has."""
    cosines = np.einsum("kd,nld->nkl", one, many, optimize=True)
    return np.asarray(np.minimum(cosines.max(2).min(1), cosines.max(1).min(1)))
