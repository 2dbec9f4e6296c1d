"""The half of `MilvusBackend` that searches: candidates by their means, or every item, scored exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError, unknown
from polysem.search.backend import CANDIDATES, Mode, Ranked
from polysem.search.filters import Filter, matches
from polysem.search.milvus import rows
from polysem.search.milvus.collection import MOST, Collection, chunks
from polysem.search.milvus.expressions import all_of, certain, complement, possible
from polysem.search.milvus.scoring import Best, Scored, Scorer
from polysem.search.store import Manifest, Side
from polysem.search.vector_checks import means_of

_MORE = 4
"""Where a filter leaves too few of the candidates, so many times as many are asked for."""


class Searching:
    """What a collection's items are searched, counted and drawn with."""

    modes: Sequence[Mode] = ("fast", "exact")

    def __init__(self, collection: Collection, manifest: Manifest) -> None:
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
    ) -> Ranked:
        if mode not in (None, *self.modes):
            raise unknown("mode of search", str(mode), self.modes)
        self._check_side(side)
        best, scorer = Best(k), Scorer(self.manifest, query)
        wanted = max(k, candidates)
        found = mode != "exact" and wanted <= MOST and self._by_means(side, scorer, best, where, wanted)
        if not found:
            best = Best(k)
            for page in self._pages(side, where, self._all_fields):
                self._score(side, scorer, best, page)
        return best.ranked(self._no_sets(side))

    def _by_means(self, side: Side, scorer: Scorer, best: Best, where: Filter | None, wanted: int) -> bool:
        """Score the candidates that pass; False if these are fewer than k, though more may be there."""
        expression = True if where is None else possible(where)
        middle, seen, limit = means_of(scorer.query), set[str](), wanted
        while True:
            keys = self._collection.nearest(side, middle, limit, expression)
            fresh = [key for key in keys if key not in seen]
            seen.update(fresh)
            for some in chunks(fresh, self._collection.rows_at_once):
                fetched = list(self._collection.fetch(some, self._all_fields))
                self._score(side, scorer, best, self._passing(side, where, fetched))
            if best.scored >= wanted or len(keys) < limit or limit == MOST:
                return best.scored >= best.k
            limit = min(MOST, _MORE * limit)

    def _score(self, side: Side, scorer: Scorer, best: Best, page: Sequence[rows.Row]) -> None:
        named = [(row, item) for row in page if (item := rows.item(row, side)) is not None]
        sets, places = self._sets(side, [row for row, _ in named])
        best.unreadable += len(page) - len(places)
        found = zip(scorer.scores(sets).tolist(), sets, (named[place] for place in places), strict=True)
        best.take(Scored(score, row["added"], row["id"], item, own) for score, own, (row, item) in found)

    def _sets(self, side: Side, page: Sequence[rows.Row]) -> tuple[NDArray[Any], list[int]]:
        """The sets that can be read, and which rows they are of."""
        found = [rows.vectors(row, side, self.manifest) for row in page]
        read = [own for own in found if own is not None]
        sets = np.stack(read) if read else self._no_sets(side)
        return sets, [place for place, own in enumerate(found) if own is not None]

    def _no_sets(self, side: Side) -> NDArray[Any]:
        return np.empty((0, self.manifest.sets[side], self.manifest.dim), self.manifest.stored)

    def holds(self, side: Side) -> bool:
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
        return self._collection.count(side, surely) + sum(len(self._passing(side, where, page)) for page in pages)

    def sample(self, side: Side, count: int, *, where: Filter | None = None, seed: int = 0) -> list[str]:
        """Keys are hashes, so a run of neighbouring keys is a random choice; the seed says where it begins."""
        self._check_side(side)
        items = (rows.item(row, side) for page in self._drawn(side, count, where, seed, ()) for row in page)
        return [item.id for item in items if item is not None]

    def background(
        self, side: Side, query: NDArray[Any], count: int, *, where: Filter | None = None, seed: int = 0
    ) -> NDArray[np.float64]:
        self._check_side(side)
        scorer, found = Scorer(self.manifest, query), [np.empty(0)]
        for page in self._drawn(side, count, where, seed, rows.set_fields(self.manifest)):
            found.append(scorer.scores(self._sets(side, page)[0]))
        return np.concatenate(found)

    def _drawn(
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
            yield self._passing(side, where, page)

    def _passing(self, side: Side, where: Filter | None, page: list[rows.Row]) -> list[rows.Row]:
        if where is None:
            return page
        said = ((row, rows.content(row)) for row in page)
        return [row for row, own in said if own is not None and matches(where, rows.filterable(own, side))]

    def _check_side(self, side: str) -> None:
        if side not in self.manifest.sets:
            raise InputError(f"This index holds {' and '.join(self.manifest.sets)}, got the side {side!r}.")
