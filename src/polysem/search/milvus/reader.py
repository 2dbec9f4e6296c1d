"""The reading half of `MilvusBackend`: candidates by their means, or every item, scored exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError, unknown
from polysem.search.backend import CANDIDATES, Mode, Ranking
from polysem.search.engine.engine import validate_k, validate_queries
from polysem.search.engine.scan import ScanItems, score_exactly
from polysem.search.engine.scoring import find_scoring, mean_vectors, similarity_scores
from polysem.search.filters import Filter, matches
from polysem.search.milvus import rows
from polysem.search.milvus.collection import MOST, MilvusCollection, split_keys
from polysem.search.milvus.expressions import all_of, certain, complement, possible
from polysem.search.store import IndexedItem, Manifest, Side

_MORE = 4
"""Where a filter leaves too few of the candidates, this many times as many are requested."""


class _Hit(NamedTuple):
    score: float
    added: int
    key: str
    item: IndexedItem
    vectors: NDArray[Any]


class _Ranking:
    """The k best of one query among items that come in pages, scored in float64 as in a folder.

    Equal scores are in the order of adding.
    """

    def __init__(self, manifest: Manifest, query: NDArray[Any], k: int) -> None:
        self.query = validate_queries(np.asarray(query)[None], manifest.dim)[0][0]
        self.k, self.scored, self.unreadable = validate_k(k), 0, 0
        self._similarity, self._scoring = manifest.similarity, find_scoring(manifest.similarity)
        self._hits: list[_Hit] = []

    def scores(self, sets: NDArray[Any]) -> NDArray[np.float64]:
        """(n, K, D) -> (n,)."""
        if not len(sets):
            return np.empty(0)
        if self._scoring is not None:
            items = ScanItems(np.ascontiguousarray(sets))
            return score_exactly(items, self.query[None], self._scoring, [np.arange(len(sets))])
        return similarity_scores(sets, self.query, self._similarity)

    def add(self, hits: Iterable[_Hit]) -> None:
        before = len(self._hits)
        self._hits += hits
        self.scored += len(self._hits) - before
        self._hits.sort(key=lambda hit: (-hit.score, hit.added, hit.key))
        del self._hits[self.k :]

    def ranked(self, empty: NDArray[Any]) -> Ranking:
        """empty: no sets, in the shape of sets."""
        scores = np.array([hit.score for hit in self._hits], np.float64)
        sets = np.stack([hit.vectors for hit in self._hits]) if self._hits else empty
        return Ranking([hit.item for hit in self._hits], scores, sets, self.scored, self.unreadable)


class MilvusReader:
    """Search, counts and samples of a collection."""

    modes: Sequence[Mode] = ("fast", "exact")

    def __init__(self, collection: MilvusCollection, manifest: Manifest) -> None:
        self._collection, self.manifest = collection, manifest
        self._all_fields = [*rows.ITEM_FIELDS, *rows.set_fields(manifest)]

    def search(
        self,
        side: Side,
        query: NDArray[Any],
        k: int,
        *,
        where: Filter | None = None,
        mode: Mode | None = None,
        candidates: int = CANDIDATES,
    ) -> Ranking:
        if mode not in (None, *self.modes):
            raise unknown("mode of search", str(mode), self.modes)
        self._check_side(side)
        ranking, wanted = _Ranking(self.manifest, query, k), max(k, candidates)
        if mode == "exact" or wanted > MOST or not self._rank_by_means(side, ranking, where, wanted):
            ranking = _Ranking(self.manifest, query, k)
            for page in self._pages(side, where, self._all_fields):
                self._score(side, ranking, page)
        return ranking.ranked(self._no_sets(side))

    def search_batch(self, side: Side, queries: NDArray[Any], k: int, *, where: Filter | None = None) -> list[Ranking]:
        return [self.search(side, query, k, where=where, mode="exact") for query in queries]

    def search_words(self, side: Side, text: str, k: int, *, where: Filter | None = None) -> list[IndexedItem]:
        raise InputError(
            f"Hybrid search needs the full-text index of a folder, and {self._collection.address.url} is in Milvus. "
            "Search without hybrid (--hybrid), or keep the index in a folder."
        )

    def _rank_by_means(self, side: Side, ranking: _Ranking, where: Filter | None, wanted: int) -> bool:
        """Score the candidates that pass; False if these are fewer than k, though more may be there."""
        expression = True if where is None else possible(where)
        mean, seen, limit = mean_vectors(ranking.query), set[str](), wanted
        while True:
            keys = self._collection.nearest(side, mean, limit, expression)
            fresh = [key for key in keys if key not in seen]
            seen.update(fresh)
            for some in split_keys(fresh, self._collection.rows_at_once):
                fetched = list(self._collection.fetch(some, self._all_fields))
                self._score(side, ranking, self._filter(side, where, fetched))
            if ranking.scored >= wanted or len(keys) < limit or limit == MOST:
                return ranking.scored >= ranking.k
            limit = min(MOST, _MORE * limit)

    def _score(self, side: Side, ranking: _Ranking, page: Sequence[rows.Row]) -> None:
        readable = [(row, item) for row in page if (item := rows.read_item(row, side)) is not None]
        sets, positions = self._read_sets(side, [row for row, _ in readable])
        ranking.unreadable += len(page) - len(positions)
        scored = zip(ranking.scores(sets).tolist(), sets, (readable[number] for number in positions), strict=True)
        ranking.add(_Hit(score, row["added"], row["id"], item, own) for score, own, (row, item) in scored)

    def _read_sets(self, side: Side, page: Sequence[rows.Row]) -> tuple[NDArray[Any], list[int]]:
        """The sets that can be read, and which rows they are of."""
        read = [rows.read_set(row, side, self.manifest) for row in page]
        intact = [own for own in read if own is not None]
        sets = np.stack(intact) if intact else self._no_sets(side)
        return sets, [number for number, own in enumerate(read) if own is not None]

    def _no_sets(self, side: Side) -> NDArray[Any]:
        return np.empty((0, self.manifest.sets[side], self.manifest.dim), self.manifest.stored)

    def has_items(self, side: Side) -> bool:
        return self.count(side) > 0

    def count(self, side: Side, where: Filter | None = None) -> int:
        self._check_side(side)
        if where is None:
            return self._collection.count(side, True)
        surely, maybe = certain(where), possible(where)
        if surely == maybe:
            return self._collection.count(side, surely)
        doubtful = all_of(maybe, complement(where))
        pages = self._collection.pages(side, doubtful, rows.ITEM_FIELDS)
        return self._collection.count(side, surely) + sum(len(self._filter(side, where, page)) for page in pages)

    def sample(self, side: Side, count: int, *, where: Filter | None = None, seed: int = 0) -> list[str]:
        """Keys are hashes, so a run of neighbouring keys is a random sample; the seed says where it begins."""
        self._check_side(side)
        items = (rows.read_item(row, side) for page in self._sample_pages(side, count, where, seed, ()) for row in page)
        return [item.id for item in items if item is not None]

    def sample_scores(
        self, side: Side, query: NDArray[Any], count: int, *, where: Filter | None = None, seed: int = 0
    ) -> NDArray[np.float64]:
        self._check_side(side)
        ranking, scores = _Ranking(self.manifest, query, 1), [np.empty(0)]
        for page in self._sample_pages(side, count, where, seed, rows.set_fields(self.manifest)):
            scores.append(ranking.scores(self._read_sets(side, page)[0]))
        return np.concatenate(scores)

    def _sample_pages(
        self, side: Side, count: int, where: Filter | None, seed: int, more: Sequence[str]
    ) -> Iterator[list[rows.Row]]:
        start = blake2b(f"sample {seed}".encode(), digest_size=16).hexdigest()
        fields, left = [*rows.ITEM_FIELDS, *more], count
        for after, before in ((start, ""), ("", start)):
            if left <= 0:
                return
            for page in self._pages(side, where, fields, after, left):
                own = [row for row in page if not before or row["id"] <= before][:left]
                left -= len(own)
                if own:
                    yield own
                if left <= 0 or len(own) < len(page):
                    return

    def _pages(
        self, side: Side, where: Filter | None, fields: Sequence[str], after: str = "", most: int | None = None
    ) -> Iterator[list[rows.Row]]:
        """The rows that pass the filter, a page at a time, ordered by key."""
        expression = True if where is None else possible(where)
        for page in self._collection.pages(side, expression, fields, after, most):
            yield self._filter(side, where, page)

    def _filter(self, side: Side, where: Filter | None, page: list[rows.Row]) -> list[rows.Row]:
        if where is None:
            return page
        contents = ((row, rows.read_content(row)) for row in page)
        return [row for row, own in contents if own is not None and matches(where, rows.as_filtered(own, side))]

    def _check_side(self, side: str) -> None:
        if side not in self.manifest.sets:
            raise InputError(f"This index holds {' and '.join(self.manifest.sets)}, got the side {side!r}.")
