"""`MilvusBackend`: an index whose items live in a Milvus collection."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.progress import Progress
from polysem.search.filters import Field, Filter
from polysem.search.milvus import rows
from polysem.search.milvus.address import Address
from polysem.search.milvus.collection import MilvusCollection, split_keys
from polysem.search.milvus.connection import MilvusConnection
from polysem.search.milvus.expressions import any_equals
from polysem.search.milvus.reader import MilvusReader
from polysem.search.store import (
    AddCounts,
    CompactReport,
    Damage,
    IndexedItem,
    Manifest,
    SearchError,
    Side,
    Stats,
    VectorBatch,
)
from polysem.search.store.entries import SIDES, check_units, validate_batches

MANIFEST = "manifest"
_IDS = 500
"""Images whose captions are asked for at once."""


class MilvusBackend(MilvusReader):
    """A `Backend` over Milvus. Several threads may use it. The package docstring says what is guaranteed."""

    keeps_frames = False

    def __init__(self, collection: MilvusCollection, manifest: Manifest, writable: bool) -> None:
        super().__init__(collection, manifest)
        self.writable = writable
        self.address = collection.address.url
        self._last_added = 0

    @classmethod
    def create(cls, url: str, manifest: Manifest, name: str | None = None) -> Self:
        """Make an index at an address that has none, and open it for writing."""
        rows.count_parts(manifest)
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
                raise SearchError(
                    f"There is no index {collection.address.url}. Make one with "
                    f"`polysem index … --store {collection.address.url}`, or look at the name."
                )
            collection.load()
            stored = collection.read_value(MANIFEST)
            if stored is None:
                raise SearchError(
                    f"The creation of the index {collection.address.url} was interrupted. Run the same `polysem index` "
                    "again."
                )
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
            replaced += len(self._known([rows.key(batch.side, entry.id) for entry in batch.entries]))
            total += self._collection.write(
                batch.side, rows.encode_rows(batch, own, self.manifest, self._next_added(len(own)))
            )
        return AddCounts(total - replaced, replaced)

    def remove(self, ids: Iterable[str], side: Side | None = None, *, texts: Iterable[str] = ()) -> int:
        self._check_writable()
        if isinstance(ids, str):
            raise InputError(f"Give a list of ids, got the text {ids!r}.")
        wanted = [rows.key(each, one) for each in self._sides(side) for one in dict.fromkeys(ids)]
        wanted += [rows.key("text", one) for one in texts]
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
        wanted = [(rows.key(each, one), each) for one in ids for each in self._sides(side)]
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
                for page in self._collection.pages("text", any_equals(field, some), rows.ITEM_FIELDS):
                    items = (rows.read_item(row, "text") for row in page)
                    captions += (item for item in items if item is not None and item.metadata.get("item") in some)
        return [item.id for item in sorted(captions, key=lambda item: item.added)]

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        self._check_side(side)
        keys = [rows.key(side, one) for one in ids]
        fields = ["id", *rows.set_fields(self.manifest)]
        fetched = list(self._collection.fetch(dict.fromkeys(keys), fields))
        sets, positions = self._read_sets(side, fetched)
        numbers = {fetched[position]["id"]: number for number, position in enumerate(positions)}
        lost = next((one for one, key in zip(ids, keys, strict=True) if key not in numbers), None)
        if lost is not None:
            raise InputError(f"The index holds no {side} {lost!r:.80} that can be read. `polysem verify` says more.")
        ordered: NDArray[Any] = sets[[numbers[key] for key in keys]] if keys else sets
        return ordered

    def intact_vectors(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]:
        self._check_side(side)
        keys = {rows.key(side, one): one for one in ids}
        fetched = self._collection.fetch(dict.fromkeys(keys), self._checked_fields)
        intact = [row for row in fetched if rows.find_damage(row, side, self.manifest) is None]
        sets, positions = self._read_sets(side, intact)
        return {keys[intact[number]["id"]]: own for number, own in zip(positions, sets, strict=True)}

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
        """None: a row of Milvus holds 64 kB in a field, and the frames of one video are a few times that."""
        return {}

    @property
    def _checked_fields(self) -> list[str]:
        """What `rows.find_damage` looks at."""
        return [*self._all_fields, "mean", "facts", "ranges", "crc"]

    def read_value(self, name: str) -> Any:
        return self._collection.read_value(name)

    def stats(self) -> Stats:
        """Tombstones, segments and bytes are known to the server alone: 0, 0 and None."""
        sides = {side: self.count(side) for side in self._sides(None)}
        return Stats(sum(sides.values()), {str(side): n for side, n in sides.items()}, 0, 0, None, False)

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

    def _next_added(self, count: int) -> int:
        """A number for each item: the time in nanoseconds, and never one twice."""
        first = max(time.time_ns(), self._last_added + 1)
        self._last_added = first + count - 1
        return first

    def _sides(self, side: Side | None) -> list[Side]:
        if side is not None:
            self._check_side(side)
        return [each for each in SIDES if each in self.manifest.sets and side in (None, each)]

    def _check_writable(self) -> None:
        if not self.writable:
            raise SearchError(f"The index {self.address} is open for reading. Open it with `write=True` to change it.")
