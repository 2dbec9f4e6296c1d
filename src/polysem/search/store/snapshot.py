"""A snapshot: the index as it was at one moment, whatever is added, removed or compacted since."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.search.filters import Filter, to_sql
from polysem.search.store import frames, fulltext, schema
from polysem.search.store.entries import Side
from polysem.search.store.errors import SearchError
from polysem.search.store.manifest import Manifest
from polysem.search.store.rows import Item, Stats, View, segment_path, unreadable
from polysem.search.store.segments import Damage, Segment

_MANY = 2**16
_SEGMENT = re.compile(r"segment-(\d+)\.seg")
_COLUMNS = "id, side, segment, row, path, caption, metadata, labels, hash, added"


class Snapshot:
    """Everything a search needs: mapped vectors, which rows count, and the items on demand.

    A position counts the rows of one side, segment after segment; it means something within one snapshot alone.
    While someone holds it SQLite keeps the pages it may need, and the log of a writer cannot be emptied.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection, known: Mapping[int, Segment]) -> None:
        """Map what `connection`, in a read transaction, speaks of; `known` are segments mapped before.

        Whoever makes it holds it.
        """
        self.folder, self._connection = folder, connection
        self._guard = threading.Lock()
        self._holders, self._version = 1, schema.data_version(connection)
        self.manifest: Manifest = schema.read_manifest(connection, folder)
        self.damaged: list[Damage] = []
        self._views: dict[str, list[View]] = {"image": [], "text": []}
        self._by_number: dict[int, View] = {}
        query = "SELECT number, side, rows, live, dead FROM segments ORDER BY number"
        for number, side, rows, live, dead in connection.execute(query):
            views = self._views[side]
            try:
                segment = known.get(number) or Segment.open(segment_path(folder, number))
                segment.require((rows, self.manifest.sets[side], self.manifest.dim))
            except (SearchError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
                if live:  # else nobody is lost with it
                    self.damaged.append(unreadable(segment_path(folder, number), error))
                continue
            start = views[-1].start + views[-1].rows if views else 0
            views.append(View(number, side, start, segment, dead))
            self._by_number[number] = views[-1]

    @property
    def is_held(self) -> bool:
        return self._holders > 0

    def hold(self) -> bool:
        """Hold it once more; False if nobody held it meanwhile and the index is another one now."""
        with self._guard:
            if not self._holders:
                self._connection.execute("BEGIN")
                if schema.data_version(self._connection) != self._version:
                    self._connection.execute("COMMIT")
                    return False
            self._holders += 1
            return True

    def let_go(self) -> None:
        """Undo one `hold`. Nothing may be asked of it before the next, except for vectors."""
        with self._guard:
            self._holders -= 1
            if not self._holders:
                self._connection.execute("COMMIT")

    @property
    def segments(self) -> dict[int, Segment]:
        """The mapped segments by number."""
        return {number: view.segment for number, view in self._by_number.items()}

    def views(self, side: Side) -> Sequence[View]:
        """The segments of one side, in the order of positions."""
        return self._views[side]

    def rows(self, side: Side) -> int:
        """How many positions a side has, dead ones too."""
        views = self._views[side]
        return views[-1].start + views[-1].rows if views else 0

    def mask(self, side: Side, where: Filter | str | None = None) -> NDArray[np.bool_]:
        """(rows,) whether the item at each position counts and, with `where`, passes the filter."""
        if where is None:
            return np.concatenate([view.live for view in self._views[side]] or [np.empty(0, np.bool_)])
        found = self.passing(side, where)
        return np.concatenate([found[view.number] for view in self._views[side]] or [np.empty(0, np.bool_)])

    def passing(
        self, side: Side, where: Filter | str, among: Container[int] | None = None
    ) -> dict[int, NDArray[np.bool_]]:
        """By number of segment, (rows,) whether the item of each row passes. among: numbers, if not all are asked.

        A row holds one item for ever, until it is dead: what was found stays true in later snapshots.
        """
        views = [view for view in self._views[side] if among is None or view.number in among]
        found = {view.number: np.zeros(view.rows, np.bool_) for view in views}
        condition, parameters = to_sql(where)
        query = f"SELECT segment, row FROM items WHERE side = ? AND {condition}"
        if len(views) < len(self._views[side]):
            query += " AND segment IN (SELECT value FROM json_each(?))"
            parameters = (*parameters, json.dumps(list(found)))
        for segments, rows in _arrays(self._connection.execute(query, (side, *parameters))):
            for number in np.unique(segments).tolist():
                if number in found:  # else it cannot be read
                    found[number][rows[segments == number]] = True
        return found

    def _start(self, number: int) -> int:
        return self._by_number[number].start if number in self._by_number else -1

    def vectors(self, side: Side, positions: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[Any]:
        """(n, K, D) copy of the sets at these positions."""
        found = np.empty((len(positions), self.manifest.sets[side], self.manifest.dim), self.manifest.stored)
        views, of_view, rows = self._places(side, positions)
        for number in np.unique(of_view).tolist():
            found[of_view == number] = views[number].vectors[rows[of_view == number]]
        return found

    def sound(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]:
        """(K, D) copies of the sets of those of these ids that are as they were written, by their checksums."""
        places = {item.id: item.position for item in self.find(dict.fromkeys(ids), side) if item.position >= 0}
        wanted = np.zeros(self.rows(side), np.bool_)
        wanted[list(places.values())] = True
        for view in self._views[side]:
            here = wanted[view.start : view.start + view.rows]
            if here.any():
                for damage in view.segment.verify(here.copy()):
                    here[slice(None) if damage.rows is None else slice(damage.rows.start, damage.rows.stop)] = False
        places = {key: place for key, place in places.items() if wanted[place]}
        return dict(zip(places, self.vectors(side, list(places.values())), strict=True))

    def items(self, side: Side, positions: Sequence[int] | NDArray[np.integer[Any]]) -> list[Item]:
        """The items at these positions. A position that does not count is an error."""
        views, of_view, rows = self._places(side, positions)
        query = f"SELECT {_COLUMNS} FROM items WHERE segment = ? AND row = ?"
        found = []
        for number, row in zip(of_view.tolist(), rows.tolist(), strict=True):
            item = self._connection.execute(query, (views[number].number, row)).fetchone()
            if item is None:
                raise InputError(f"Position {views[number].start + row} of the side {side!r} holds no item any more.")
            found.append(self._item(item))
        return found

    def matching(self, side: Side, where: Filter) -> list[str]:
        """The ids of all items that pass the filter, those too whose vectors cannot be read."""
        condition, parameters = to_sql(where)
        query = f"SELECT id FROM items WHERE side = ? AND {condition} ORDER BY segment, row"
        return [key for (key,) in self._connection.execute(query, (side, *parameters))]

    def ids(self, side: Side, positions: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
        """The ids of the items at these positions."""
        return [item.id for item in self.items(side, positions)]

    def find(self, ids: Iterable[str], side: Side | None = None) -> list[Item]:
        """The items with these ids, on one side or both, in the order of `ids`. Ids that are not there are left out."""
        query = f"SELECT {_COLUMNS} FROM items WHERE id = ? AND side IN (?, ?) ORDER BY side"
        sides = ("image", "text") if side is None else (side, side)
        return [self._item(row) for key in ids for row in self._connection.execute(query, (key, *sides))]

    @property
    def has_frames(self) -> bool:
        """Whether any video was added."""
        return frames.kept(self._connection)

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
        """(frames, K, D) of each of these ids that has frames."""
        return frames.read(self._connection, side, ids, self.manifest)

    def captions_of(self, ids: Iterable[str]) -> list[str]:
        """The ids of the texts that name one of these images as their `metadata.item`; they are called id#number."""
        # "$" follows "#", so the range holds what starts with the id and a "#": found through the index of ids.
        query = (
            "SELECT id FROM items WHERE side = 'text' AND id >= ? AND id < ? "
            "AND json_extract(metadata, '$.item') = ? ORDER BY id"
        )
        return [found for key in ids for (found,) in self._connection.execute(query, (f"{key}#", f"{key}$", key))]

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        """The content hash of each of these ids that is there: what has the same hash need not be encoded again."""
        query = "SELECT id, hash FROM items WHERE side = ? AND id IN (SELECT value FROM json_each(?))"
        return dict(self._connection.execute(query, (side, json.dumps(list(ids)))))

    def paths(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        """The path of each of these ids that is there."""
        query = "SELECT id, path FROM items WHERE side = ? AND id IN (SELECT value FROM json_each(?))"
        return dict(self._connection.execute(query, (side, json.dumps(list(ids)))))

    def every(self, side: Side | None = None, where: Filter | str | None = None) -> Iterator[Item]:
        """All items, one at a time, in the order they lie on disk."""
        condition, parameters = ("1", ()) if where is None else to_sql(where)
        sides = ("image", "text") if side is None else (side, side)
        query = f"SELECT {_COLUMNS} FROM items WHERE side IN (?, ?) AND {condition} ORDER BY segment, row"
        return (self._item(row) for row in self._connection.execute(query, (*sides, *parameters)))

    def with_words(self, text: str, side: Side, k: int = 10) -> list[Item]:
        """The best `k` items whose caption or id holds every word of `text`."""
        return [self._item(row) for row in fulltext.search(self._connection, _COLUMNS, text, side, k)]

    def holds(self, side: Side) -> bool:
        """Whether there are items of a side, those too whose vectors cannot be read."""
        query = "SELECT 1 FROM segments WHERE side = ? AND live > 0"
        return self._connection.execute(query, (side,)).fetchone() is not None

    def note(self, name: str) -> Any:
        """What `Store.note` wrote under this name; None if nothing."""
        row = self._connection.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def stats(self) -> Stats:
        """Counts, and the bytes of all files."""
        sides: dict[str, int] = dict.fromkeys(self.manifest.sets, 0)
        dead = segments = size = 0
        for side, rows, live in self._connection.execute("SELECT side, rows, live FROM segments"):
            sides[side] += live
            dead, segments = dead + rows - live, segments + 1
        for path in (*self.folder.glob("segment-*"), *self.folder.glob(schema.NAME + "*")):
            with suppress(FileNotFoundError):  # compacted away since
                size += path.stat().st_size
        query = "SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'segments'"
        (change,) = self._connection.execute(query).fetchone()
        return Stats(sum(sides.values()), sides, dead, segments, size, fulltext.indexed(self._connection), change)

    def verify(self, progress: Callable[[str, int, int], None] | None = None) -> list[Damage]:
        """Read all that counts once; what is damaged, by segment and rows. The rest stays usable."""
        found = list(self.damaged)
        for done, view in enumerate(self._by_number.values()):
            if progress is not None:
                progress("checking", done, len(self._by_number))
            found += view.segment.verify(view.live)
            for path in self.folder.glob(f"{view.segment.path.stem}.*.seg"):
                try:
                    found += Segment.open(path).verify()
                except SearchError as error:
                    found.append(unreadable(path, error))
                except FileNotFoundError:
                    continue  # compacted away since
        try:
            found += frames.damaged(self._connection)
            checked = [why for (why,) in self._connection.execute("PRAGMA quick_check")]
        except sqlite3.DatabaseError as error:  # too damaged to be looked through
            checked = [str(error)]
        return found + [Damage(schema.NAME, None, why) for why in checked if why != "ok"]

    def number(self, damage: Damage) -> int | None:
        """Of the segment that a damage concerns; None where it concerns no vectors."""
        found = _SEGMENT.fullmatch(damage.segment)
        return None if found is None else int(found[1])

    def among(self, damage: Damage) -> list[str]:
        """The ids of the items that a damage concerns."""
        number = self.number(damage)
        if number is None:  # the database, or what was attached and can be made again
            return []
        rows = damage.rows or range(2**62)
        query = "SELECT id FROM items WHERE segment = ? AND row >= ? AND row < ? ORDER BY row"
        return [key for (key,) in self._connection.execute(query, (number, rows.start, rows.stop))]

    def _places(
        self, side: Side, positions: Sequence[int] | NDArray[np.integer[Any]]
    ) -> tuple[Sequence[View], NDArray[np.int64], NDArray[np.int64]]:
        """The views of a side, and for each position which of them it is in and its row there."""
        given = np.asarray(positions, np.int64).reshape(-1)
        if len(given) and (given.min() < 0 or given.max() >= self.rows(side)):
            raise InputError(f"The side {side!r} has positions 0 to {self.rows(side) - 1}, got {given!s:.80}.")
        views = self._views[side]
        starts = np.array([view.start for view in views], np.int64)
        of_view = np.searchsorted(starts, given, side="right") - 1
        return views, of_view, given - starts[of_view]

    def _item(self, row: tuple[Any, ...]) -> Item:
        key, side, segment, place, path, caption, metadata, labels, digest, added = row
        start = self._start(segment)
        position = -1 if start < 0 else start + place
        return Item(key, side, position, path, caption, json.loads(metadata), tuple(json.loads(labels)), digest, added)

    def close(self) -> None:
        """End its read transaction. Vectors that were handed out stay readable."""
        self._connection.close()

    def __del__(self) -> None:
        self.close()


def _arrays(cursor: sqlite3.Cursor) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows of two integers, in blocks: a million of them must not be a million objects at once."""
    while block := list(islice(cursor, _MANY)):
        pairs = np.array(block, np.int64)
        yield pairs[:, 0], pairs[:, 1]
