"""`MilvusBackend`: an index whose items live in a Milvus collection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.search.filters import Field, Filter
from polysem.search.milvus import rows
from polysem.search.milvus.address import Address
from polysem.search.milvus.collection import Collection, chunks
from polysem.search.milvus.connection import Connection
from polysem.search.milvus.expressions import any_equals
from polysem.search.milvus.key_values import Notes
from polysem.search.milvus.searching import Searching
from polysem.search.store import Added, Batch, Compacted, Damage, Item, Manifest, SearchError, Side, Stats
from polysem.search.store.entries import SIDES, checked
from polysem.search.vector_checks import check_units

Progress = Callable[[str, int, int], None]
MANIFEST = "manifest"
_IDS = 500
"""Images whose captions are asked for at once."""


class MilvusBackend(Searching):
    """A `Backend` over Milvus. Several threads may use it. The package says what is guaranteed, and what is not."""

    keeps_frames = False

    def __init__(self, collection: Collection, manifest: Manifest, writable: bool) -> None:
        super().__init__(collection, manifest)
        self._notes, self.writable = Notes(collection, manifest.dim), writable
        self.address = collection.address.url
        self._last_added = 0

    @classmethod
    def create(cls, url: str, manifest: Manifest, name: str | None = None) -> Self:
        """Make an index at an address that has none, and open it for writing."""
        rows.parts_of(manifest)
        connection = Connection(Address.parse(url, name), create=True)
        try:
            collection = Collection(connection, manifest)
            if collection.exists():
                collection.load()
                if Notes.read(collection, MANIFEST) is not None:
                    raise SearchError(
                        f"{collection.address.url} holds an index already. Add to it with `polysem add`, or choose "
                        "another name at the end of the address."
                    )
                collection.drop()  # its making was interrupted: the manifest comes last
            collection.make(manifest)
            collection.load()
            made = cls(collection, manifest, writable=True)
            made._notes.write(MANIFEST, dict(manifest.as_rows()))
            return made
        except BaseException:
            connection.close()
            raise

    @classmethod
    def open(cls, url: str, write: bool = False, name: str | None = None) -> Self:
        """Open the index at an address."""
        connection = Connection(Address.parse(url, name))
        try:
            collection = Collection(connection)
            if not collection.exists():
                raise SearchError(
                    f"There is no index {collection.address.url}. Make one with "
                    f"`polysem index … --store {collection.address.url}`, or look at the name."
                )
            collection.load()
            found = Notes.read(collection, MANIFEST)
            if found is None:
                raise SearchError(
                    f"The making of the index {collection.address.url} was interrupted. Run the same `polysem index` "
                    "again."
                )
            manifest = Manifest.from_rows(found)
            collection.know(manifest)
            return cls(collection, manifest, write)
        except BaseException:
            connection.close()
            raise

    # --------------------------------------------------------------------------------------------------- writing

    def add(self, *batches: Batch) -> Added:
        """Everything is checked before anything is written. Arrays and frames of a batch are left out: see `frames`."""
        self._check_writable()
        given = [checked(batch, self.manifest) for batch in batches if batch.entries]
        for side in SIDES:
            ids = [entry.id for batch in given if batch.side == side for entry in batch.entries]
            if len(set(ids)) != len(ids):
                raise InputError(
                    f"Two batches of the side {side!r} hold the same id. Ids name items: make them unique."
                )
        for batch in given:
            check_units(batch)
        entries = [rows.checked_entries(batch) for batch in given]
        replaced = total = 0
        for batch, own in zip(given, entries, strict=True):
            replaced += len(self._known([rows.key(batch.side, entry.id) for entry in batch.entries]))
            total += self._collection.write(
                batch.side, rows.rows(batch, own, self.manifest, self._next_added(len(own)))
            )
        return Added(total - replaced, replaced)

    def remove(self, ids: Iterable[str], side: Side | None = None, *, texts: Iterable[str] = ()) -> int:
        self._check_writable()
        if isinstance(ids, str):
            raise InputError(f"Give a list of ids, got the text {ids!r}.")
        wanted = [rows.key(each, one) for each in self._sides(side) for one in dict.fromkeys(ids)]
        wanted += [rows.key("text", one) for one in texts]
        there = self._known(list(dict.fromkeys(wanted)))
        self._collection.delete(there)
        return len(there)

    def matching(self, side: Side, where: Filter) -> list[str]:
        return self.sample(side, self.count(side, where), where=where)

    def repair(self, damage: Sequence[Damage]) -> list[Damage]:
        return list(damage)  # nothing here can be made again from something else

    def write_note(self, name: str, value: Any) -> None:
        self._check_writable()
        if name == MANIFEST:
            raise InputError(f"The note {MANIFEST!r} says what the index is: choose another name.")
        self._notes.write(name, value)

    def settle(self, progress: Progress | None = None) -> None:
        self._check_writable()
        self._collection.settle(progress)

    def compact(self) -> Compacted:
        """Ask the server to; it works in the background and tells no numbers."""
        self._check_writable()
        self._collection.compact()
        return Compacted(0, 0, 0, [])

    # --------------------------------------------------------------------------------------------------- reading

    def find(self, ids: Iterable[str], side: Side | None = None) -> list[Item]:
        wanted = [(rows.key(each, one), each) for one in ids for each in self._sides(side)]
        sides = dict(wanted)
        found = self._collection.fetch(sides, rows.ITEM_FIELDS)
        items = {row["id"]: rows.item(row, sides[row["id"]]) for row in found}
        return [item for key, _ in wanted if (item := items.get(key)) is not None]

    def paths(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        return {item.id: item.path for item in self.find(dict.fromkeys(ids), side)}

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        return {item.id: item.hash for item in self.find(dict.fromkeys(ids), side)}

    def captions_of(self, ids: Iterable[str]) -> list[str]:
        found: list[Item] = []
        field, wanted = Field(("item",)), list(dict.fromkeys(ids))
        if "text" in self.manifest.sets:
            for some in chunks(wanted, _IDS):
                for page in self._collection.pages("text", any_equals(field, some), rows.ITEM_FIELDS):
                    items = (rows.item(row, "text") for row in page)
                    found += (item for item in items if item is not None and item.metadata.get("item") in some)
        return [item.id for item in sorted(found, key=lambda item: item.added)]

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        self._check_side(side)
        keys = [rows.key(side, one) for one in ids]
        fields = ["id", *rows.set_fields(self.manifest)]
        fetched = list(self._collection.fetch(dict.fromkeys(keys), fields))
        sets, places = self._sets(side, fetched)
        place = {fetched[of]["id"]: number for number, of in enumerate(places)}
        gone = next((one for one, key in zip(ids, keys, strict=True) if key not in place), None)
        if gone is not None:
            raise InputError(f"The index holds no {side} {gone!r:.80} that can be read. `polysem verify` says more.")
        ordered: NDArray[Any] = sets[[place[key] for key in keys]] if keys else sets
        return ordered

    def sound(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]:
        self._check_side(side)
        keys = {rows.key(side, one): one for one in ids}
        fetched = self._collection.fetch(dict.fromkeys(keys), self._checked_fields)
        whole = [row for row in fetched if rows.damage(row, side, self.manifest) is None]
        sets, places = self._sets(side, whole)
        return {keys[whole[place]["id"]]: own for place, own in zip(places, sets, strict=True)}

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
        """None: a row of Milvus holds 64 kB in a field, and the frames of one video are a few times that."""
        return {}

    @property
    def _checked_fields(self) -> list[str]:
        """What `rows.damage` looks at."""
        return [*self._all_fields, "mean", "facts", "ranges", "crc"]

    def note(self, name: str) -> Any:
        return Notes.read(self._collection, name)

    def stats(self) -> Stats:
        """Rows that are dead, segments and bytes are the server's affair: 0, 0 and None."""
        sides = {side: self.count(side) for side in self._sides(None)}
        return Stats(sum(sides.values()), {str(side): n for side, n in sides.items()}, 0, 0, None, False)

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Read every row: checksum, mean, and what filters ask for. A damage's segment is partition/key."""
        found, done, of = [], 0, self.stats().items
        for side in self._sides(None):
            for page in self._collection.pages(side, True, self._checked_fields):
                for row in page:
                    if (why := rows.damage(row, side, self.manifest)) is not None:
                        found.append(Damage(f"{side}/{row['id']}", None, why))
                done += len(page)
                if progress is not None:
                    progress("verifying", done, max(done, of))
        return found

    def among(self, damage: Damage) -> list[str]:
        side, _, key = damage.segment.partition("/")
        if side not in self.manifest.sets:
            return []
        # Where the damage took the id along, there is none to name.
        said = (rows.content(row) for row in self._collection.fetch([key], rows.ITEM_FIELDS))
        return [str(one["id"]) for one in said if one is not None]

    def close(self) -> None:
        self._collection.connection.close()

    def _known(self, keys: Sequence[str]) -> list[str]:
        """Those of the keys that are there."""
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
