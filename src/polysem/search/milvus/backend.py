"""`MilvusBackend`: an index whose items live in a Milvus collection.

Searching takes candidates by their means, or every item, and scores their sets exactly.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError, unknown
from polysem.progress import Progress
from polysem.search.backend import CANDIDATES, Mode, RankedItems
from polysem.search.engine.engine import validate_k, validate_queries
from polysem.search.engine.scan import ScanItems, score_exactly
from polysem.search.engine.scoring import find_scoring, mean_vectors, similarity_scores
from polysem.search.filters import Field, Filter, matches
from polysem.search.milvus import expressions, rows
from polysem.search.milvus.collection import MOST, MilvusCollection, split_keys
from polysem.search.milvus.connection import Address, MilvusConnection
from polysem.search.store import AddCounts, CompactReport, Damage, IndexedItem, Manifest, SearchError, Side, Stats
from polysem.search.store.entries import SIDES, VectorBatch, check_units, validate_batches

MANIFEST = "manifest"
_IDS = 500
"""Images whose captions are asked for at once."""
_MORE = 4
"""Where a filter leaves too few of the candidates, this many times as many are requested."""


class _TopItems:
    """The k best of one query among items that come in pages, scored in float64 as in a folder.

    hits: -score, time of adding, key, item and set; equal scores are in the order of adding.
    """

    def __init__(self, manifest: Manifest, side: Side, query: NDArray[Any], k: int) -> None:
        self.query, self._side = validate_queries(np.asarray(query)[None], manifest.dim)[0][0], side
        self.k, self.scored, self.unreadable = validate_k(k), 0, 0
        self._similarity, self._scoring = manifest.similarity, find_scoring(manifest.similarity, side)
        self.hits: list[tuple[float, int, str, IndexedItem, NDArray[Any]]] = []

    def scores(self, sets: NDArray[Any]) -> NDArray[np.float64]:
        """(n, K, D) -> (n,)."""
        if not len(sets):
            return np.empty(0)
        if self._scoring is not None:
            items = ScanItems(np.ascontiguousarray(sets))
            return score_exactly(items, self.query[None], self._scoring, [np.arange(len(sets))])
        return similarity_scores(sets, self.query, self._similarity, self._side)

    def add(self, items: Sequence[tuple[rows.Row, IndexedItem]], sets: NDArray[Any]) -> None:
        self.scored += len(items)
        for score, (row, item), own in zip(self.scores(sets).tolist(), items, sets, strict=True):
            self.hits.append((-score, row["added"], row["id"], item, own))
        self.hits.sort(key=lambda hit: hit[:3])
        del self.hits[self.k :]


class MilvusBackend:
    """A `Backend` over Milvus. Several threads may use it. The package docstring says what is guaranteed."""

    keeps_frames = False
    modes: Sequence[Mode] = ("fast", "exact")

    def __init__(self, collection: MilvusCollection, manifest: Manifest, writable: bool) -> None:
        self._collection, self.manifest, self.writable = collection, manifest, writable
        self.address = collection.address.url
        self._last_added = 0
        self._set_fields = rows.set_fields(manifest)
        self._all_fields = [*rows.ITEM_FIELDS, *self._set_fields]
        self._checked_fields = [*self._all_fields, "mean", "facts", "ranges", "crc"]
        """What `rows.find_damage` looks at."""

    @classmethod
    def create(cls, url: str, manifest: Manifest, name: str | None = None) -> Self:
        """Make an index at an address that has none, and open it for writing."""
        rows.set_fields(manifest)  # refuses sets that Milvus cannot hold
        connection = MilvusConnection(Address.parse(url, name), create=True)
        try:
            collection = MilvusCollection(connection, manifest)
            if collection.exists():
                collection.load()
                if collection.read_value(MANIFEST) is not None:
                    raise SearchError(
                        f"{collection.address.url} holds an index already. Add to it with `polysem add`, or choose "
                        "another name at the end of the address."
                    )
                collection.drop()  # its creation was interrupted: the manifest comes last
            collection.create(manifest)
            collection.load()
            collection.write_value(MANIFEST, dict(manifest.as_rows()))
            return cls(collection, manifest, writable=True)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def open(cls, url: str, write: bool = False, name: str | None = None) -> Self:
        """Open the index at an address."""
        connection = MilvusConnection(Address.parse(url, name))
        try:
            collection = MilvusCollection(connection)
            if not collection.exists():
                url = collection.address.url
                make = f"`polysem index … --store {url}`"
                raise SearchError(f"There is no index {url}. Make one with {make}, or look at the name.")
            collection.load()
            stored = collection.read_value(MANIFEST)
            if stored is None:
                interrupted = f"The creation of the index {collection.address.url} was interrupted."
                raise SearchError(f"{interrupted} Run the same `polysem index` again.")
            manifest = Manifest.from_rows(stored)
            collection.set_manifest(manifest)
            return cls(collection, manifest, write)
        except BaseException:
            connection.close()
            raise

    @contextmanager
    def snapshot(self) -> Iterator[Self]:
        """The live collection: Milvus has no snapshots, so a concurrent write may show between two calls."""
        yield self

    # --------------------------------------------------------------------------------------------------- writing

    def add(self, *batches: VectorBatch) -> AddCounts:
        """Everything is checked before anything is written. Arrays and frames of a batch are left out: see `frames`."""
        self._check_writable()
        valid = validate_batches(batches, self.manifest)
        for batch in valid:
            check_units(batch)
        entries = [rows.encode_entries(batch) for batch in valid]
        replaced = total = 0
        for batch, own in zip(valid, entries, strict=True):
            replaced += len(self._known([entry["id"] for entry in own]))
            # A number for each item: the time in nanoseconds, and never one twice.
            added = max(time.time_ns(), self._last_added + 1)
            self._last_added = added + len(own) - 1
            total += self._collection.write(batch.side, rows.encode_rows(batch, own, self.manifest, added))
        return AddCounts(total - replaced, replaced)

    def remove(self, ids: Iterable[str], side: Side | None = None, *, texts: Iterable[str] = ()) -> int:
        self._check_writable()
        if isinstance(ids, str):
            raise InputError(f"Give a list of ids, got the text {ids!r}.")
        wanted = [rows.make_key(each, one) for each in self._sides(side) for one in dict.fromkeys(ids)]
        wanted += [rows.make_key("text", one) for one in texts]
        existing = self._known(list(dict.fromkeys(wanted)))
        self._collection.delete(existing)
        return len(existing)

    def matching_ids(self, side: Side, where: Filter) -> list[str]:
        return self.sample(side, self.count(side, where), where=where)

    def repair(self, damage: Sequence[Damage]) -> list[Damage]:
        return list(damage)  # nothing here is derived from something else

    def write_value(self, name: str, value: Any) -> None:
        self._check_writable()
        if name == MANIFEST:
            raise InputError(f"The value {MANIFEST!r} describes the index: choose another name.")
        self._collection.write_value(name, value)

    def optimize(self, progress: Progress | None = None) -> None:
        self._check_writable()
        self._collection.wait_until_indexed(progress)

    def compact(self) -> CompactReport:
        """Ask the server to; it works in the background and reports no numbers."""
        self._check_writable()
        self._collection.compact()
        return CompactReport(0, 0, 0, [])

    # --------------------------------------------------------------------------------------------------- reading

    def find(self, ids: Iterable[str], side: Side | None = None) -> list[IndexedItem]:
        wanted = [(rows.make_key(each, one), each) for one in ids for each in self._sides(side)]
        sides = dict(wanted)
        fetched = self._collection.fetch(sides, rows.ITEM_FIELDS)
        items = {row["id"]: rows.read_item(row, sides[row["id"]]) for row in fetched}
        return [item for key, _ in wanted if (item := items.get(key)) is not None]

    def paths(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        return {item.id: item.path for item in self.find(dict.fromkeys(ids), side)}

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        return {item.id: item.hash for item in self.find(dict.fromkeys(ids), side)}

    def caption_ids(self, ids: Iterable[str]) -> list[str]:
        captions: list[IndexedItem] = []
        field, wanted = Field(("item",)), list(dict.fromkeys(ids))
        if "text" in self.manifest.sets:
            for some in split_keys(wanted, _IDS):
                for page in self._collection.pages(
                    "text", expressions.express_any_equal(field, some), rows.ITEM_FIELDS
                ):
                    items = (rows.read_item(row, "text") for row in page)
                    captions += (item for item in items if item is not None and item.metadata.get("item") in some)
        return [item.id for item in sorted(captions, key=lambda item: item.added)]

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        self._check_side(side)
        keys = [rows.make_key(side, one) for one in ids]
        fetched = self._collection.fetch(dict.fromkeys(keys), ["id", *self._set_fields])
        sets = {row["id"]: rows.read_set(row, side, self.manifest) for row in fetched}
        lost = next((one for one, key in zip(ids, keys, strict=True) if sets.get(key) is None), None)
        if lost is not None:
            raise InputError(f"The index holds no {side} {lost!r:.80} that can be read. `polysem verify` says more.")
        return self._stack(side, [sets[key] for key in keys])

    def intact_vectors(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]:
        self._check_side(side)
        keys = {rows.make_key(side, one): one for one in ids}
        fetched = self._collection.fetch(keys, self._checked_fields)
        intact = (row for row in fetched if rows.find_damage(row, side, self.manifest) is None)
        sets = ((row["id"], rows.read_set(row, side, self.manifest)) for row in intact)
        return {keys[key]: own for key, own in sets if own is not None}

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
        """None: a row of Milvus holds 64 kB in a field, and the frames of one video are a few times that."""
        return {}

    def read_value(self, name: str) -> Any:
        return self._collection.read_value(name)

    def stats(self) -> Stats:
        """Tombstones, segments and bytes are known to the server alone: 0, 0 and None."""
        sides: dict[str, int] = {side: self.count(side) for side in self._sides(None)}
        return Stats(sum(sides.values()), sides, 0, 0, None, False)

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Read every row: checksum, mean, and what filters ask for. A damage's segment is partition/key."""
        damage, done, total = [], 0, self.stats().items
        for side in self._sides(None):
            for page in self._collection.pages(side, True, self._checked_fields):
                for row in page:
                    if (why := rows.find_damage(row, side, self.manifest)) is not None:
                        damage.append(Damage(f"{side}/{row['id']}", None, why))
                done += len(page)
                if progress is not None:
                    progress("verifying", done, max(done, total))
        return damage

    def damaged_ids(self, damage: Damage) -> list[str]:
        side, _, key = damage.segment.partition("/")
        if side not in self.manifest.sets:
            return []
        # Where the damage took the id along, there is none to name.
        contents = (rows.read_content(row) for row in self._collection.fetch([key], rows.ITEM_FIELDS))
        return [str(one["id"]) for one in contents if one is not None]

    def close(self) -> None:
        self._collection.connection.close()

    def _known(self, keys: Sequence[str]) -> list[str]:
        """Those of the keys that exist."""
        return [row["id"] for row in self._collection.fetch(keys, ["id"])]

    def _sides(self, side: Side | None) -> list[Side]:
        if side is not None:
            self._check_side(side)
        return [each for each in SIDES if each in self.manifest.sets and side in (None, each)]

    def _check_writable(self) -> None:
        if not self.writable:
            raise SearchError(f"The index {self.address} is open for reading. Open it with `write=True` to change it.")

    # ------------------------------------------------------------------------------------------------- searching

    def search(
        self,
        side: Side,
        query: NDArray[Any],
        k: int,
        *,
        where: Filter | None = None,
        mode: Mode | None = None,
        candidates: int = CANDIDATES,
    ) -> RankedItems:
        if mode not in (None, *self.modes):
            raise unknown("mode of search", str(mode), self.modes)
        self._check_side(side)
        best, wanted = _TopItems(self.manifest, side, query, k), max(k, candidates)
        if mode == "exact" or wanted > MOST or not self._rank_by_means(side, best, where, wanted):
            best = _TopItems(self.manifest, side, query, k)
            for page in self._pages(side, where, self._all_fields):
                self._score(side, best, page)
        items, scores = [hit[3] for hit in best.hits], np.array([-hit[0] for hit in best.hits], np.float64)
        return RankedItems(
            items, scores, self._stack(side, [hit[4] for hit in best.hits]), best.scored, best.unreadable
        )

    def search_batch(
        self, side: Side, queries: NDArray[Any], k: int, *, where: Filter | None = None
    ) -> list[RankedItems]:
        return [self.search(side, query, k, where=where, mode="exact") for query in queries]

    def search_words(self, side: Side, text: str, k: int, *, where: Filter | None = None) -> list[IndexedItem]:
        raise InputError(
            f"Hybrid search needs the full-text index of a folder, and {self._collection.address.url} is in Milvus. "
            "Search without hybrid (--hybrid), or keep the index in a folder."
        )

    def _rank_by_means(self, side: Side, best: _TopItems, where: Filter | None, wanted: int) -> bool:
        """Score the candidates that pass; False if these are fewer than k, though more may be there."""
        expression = True if where is None else expressions.express_possible(where)
        mean, seen, limit = mean_vectors(best.query), set[str](), wanted
        while True:
            keys = self._collection.nearest(side, mean, limit, expression)
            fresh = [key for key in keys if key not in seen]
            seen.update(fresh)
            for some in split_keys(fresh, self._collection.rows_at_once):
                fetched = list(self._collection.fetch(some, self._all_fields))
                self._score(side, best, self._filter(side, where, fetched))
            if best.scored >= wanted or len(keys) < limit or limit == MOST:
                return best.scored >= best.k
            limit = min(MOST, _MORE * limit)

    def _score(self, side: Side, best: _TopItems, page: Sequence[rows.Row]) -> None:
        read = [(row, rows.read_item(row, side), rows.read_set(row, side, self.manifest)) for row in page]
        intact = [(row, item, own) for row, item, own in read if item is not None and own is not None]
        best.unreadable += len(page) - len(intact)
        best.add([(row, item) for row, item, _ in intact], self._stack(side, [own for *_, own in intact]))

    def _stack(self, side: Side, sets: Iterable[NDArray[Any] | None]) -> NDArray[Any]:
        """(n, K, D) of those that could be read."""
        intact, shape = [own for own in sets if own is not None], (self.manifest.sets[side], self.manifest.dim)
        return np.stack(intact) if intact else np.empty((0, *shape), self.manifest.stored)

    def has_items(self, side: Side) -> bool:
        return self.count(side) > 0

    def count(self, side: Side, where: Filter | None = None) -> int:
        self._check_side(side)
        if where is None:
            return self._collection.count(side, True)
        surely, maybe = expressions.express_certain(where), expressions.express_possible(where)
        if surely == maybe:
            return self._collection.count(side, surely)
        doubtful = expressions.join("and", maybe, expressions.express_complement(where))
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
        best = _TopItems(self.manifest, side, query, 1)
        pages = self._sample_pages(side, count, where, seed, self._set_fields)
        sets = (self._stack(side, (rows.read_set(row, side, self.manifest) for row in page)) for page in pages)
        return np.concatenate([np.empty(0), *map(best.scores, sets)])

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
        expression = True if where is None else expressions.express_possible(where)
        for page in self._collection.pages(side, expression, fields, after, most):
            yield self._filter(side, where, page)

    def _filter(self, side: Side, where: Filter | None, page: list[rows.Row]) -> list[rows.Row]:
        if where is None:
            return page
        contents = ((row, rows.read_content(row)) for row in page)
        return [row for row, own in contents if own is not None and matches(where, rows.to_filter_item(own, side))]

    def _check_side(self, side: str) -> None:
        if side not in self.manifest.sets:
            raise InputError(f"This index holds {' and '.join(self.manifest.sets)}, got the side {side!r}.")
