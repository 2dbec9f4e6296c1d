"""A snapshot: the index at one commit, whatever is added, removed or compacted since."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.progress import Progress
from polysem.search.filters import Filter
from polysem.search.filters.sql import to_sql
from polysem.search.store import schema
from polysem.search.store.entries import IndexedItem, Manifest, Side
from polysem.search.store.errors import SearchError
from polysem.search.store.schema import KEYS
from polysem.search.store.segments import Damage, Segment, attached_path, describe_unreadable, live_rows, segment_path

Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
Positions = Sequence[int] | NDArray[np.integer[Any]]
_MANY = 2**16
_WORD = re.compile(r"\w+")
_COLUMNS = "id, side, segment, row, path, caption, metadata, labels, hash, added"


@dataclass(frozen=True)
class SegmentView:
    """A segment in a snapshot. start: position of its first row. dead: tombstones as packed bits, None for none."""

    number: int
    side: Side
    start: int
    segment: Segment
    dead: bytes | None

    @property
    def rows(self) -> int:
        return len(self.vectors)

    @property
    def vectors(self) -> NDArray[Any]:
        """(rows, K, D), mapped and read-only."""
        return self.segment.arrays["vectors"]

    def open_attached(self, name: str, verify: bool = False) -> Segment | None:
        """What `Store.attach` wrote for this segment; None if nothing, or damaged. verify: read all of it."""
        try:
            stored = Segment.open(attached_path(self.segment.path, name))
        except (FileNotFoundError, SearchError):
            return None
        return None if verify and stored.verify() else stored

    @property
    def live(self) -> Mask:
        """(rows,) whether each row is without a tombstone."""
        return live_rows(self.dead, self.rows)


class Stats(NamedTuple):
    """How large an index is. dead: rows with a tombstone, which take space until `compact`.

    bytes: of all files; None where another program stores them. change: grows with everything added or rewritten.
    """

    items: int
    by_side: dict[str, int]
    dead: int
    segments: int
    bytes: int | None
    words: bool
    change: int = 0

    @property
    def bytes_per_item(self) -> float | None:
        return None if self.bytes is None else self.bytes / max(1, self.items)


class Snapshot:
    """The index at one commit: mapped vectors, live rows, and the items on demand.

    A position counts the rows of one side, segment after segment; it is valid within one snapshot only.
    While it is held SQLite keeps the pages it may need, and the write-ahead log cannot be truncated.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection, known: Mapping[int, Segment]) -> None:
        """Map and hold the segments that `connection`, in a read transaction, refers to; `known` are mapped already."""
        self.folder, self._connection = folder, connection
        self._guard = threading.Lock()
        self.holders, self._version = 1, schema.data_version(connection)
        self.manifest: Manifest = schema.read_manifest(connection, folder)
        self.damaged: list[Damage] = []
        self._views: dict[str, list[SegmentView]] = {"image": [], "text": []}
        self._by_number: dict[int, SegmentView] = {}
        query = "SELECT number, side, rows, live, dead FROM segments ORDER BY number"
        for number, side, rows, live, dead in connection.execute(query):
            views = self._views[side]
            try:
                segment = known.get(number) or Segment.open(segment_path(folder, number))
                segment.require((rows, self.manifest.sets[side], self.manifest.dim))
            except (SearchError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
                if live:  # else no item is lost with it
                    self.damaged.append(describe_unreadable(segment_path(folder, number), error))
                continue
            self._by_number[number] = SegmentView(number, side, self.rows(side), segment, dead)
            views.append(self._by_number[number])

    def hold(self) -> bool:
        """Hold it once more; False if it was released and something has been committed since."""
        with self._guard:
            if not self.holders:
                self._connection.execute("BEGIN")
                if schema.data_version(self._connection) != self._version:
                    self._connection.execute("COMMIT")
                    return False
            self.holders += 1
            return True

    def release(self) -> None:
        """Undo one `hold`. Until the next, only vectors may be read."""
        with self._guard:
            self.holders -= 1
            if not self.holders:
                self._connection.execute("COMMIT")

    @property
    def segments(self) -> dict[int, Segment]:
        """The mapped segments by number."""
        return {number: view.segment for number, view in self._by_number.items()}

    def views(self, side: Side) -> Sequence[SegmentView]:
        """The segments of one side, in the order of positions."""
        return self._views[side]

    def rows(self, side: Side) -> int:
        """How many positions a side has, dead ones too."""
        return sum(view.rows for view in self._views[side])

    def mask(self, side: Side, where: Filter | str | None = None) -> Mask:
        """(rows,) whether the item at each position is live and, with `where`, passes the filter."""
        masks = [view.live for view in self._views[side]] if where is None else self.filter_rows(side, where).values()
        return np.concatenate([np.empty(0, np.bool_), *masks])

    def filter_rows(self, side: Side, where: Filter | str, among: Container[int] | None = None) -> dict[int, Mask]:
        """By number of segment, (rows,) whether the item of each row passes. among: numbers, if not all segments.

        Rows are immutable and deletes are tombstones: the answer stays true in later snapshots, for rows that are live.
        """
        views = [view for view in self._views[side] if among is None or view.number in among]
        passing = {view.number: np.zeros(view.rows, np.bool_) for view in views}
        condition, parameters = to_sql(where)
        query = f"SELECT segment, row FROM items WHERE side = ? AND {condition}"
        if len(views) < len(self._views[side]):
            query += f" AND segment IN {KEYS}"
            parameters = (*parameters, json.dumps(list(passing)))
        cursor = self._connection.execute(query, (side, *parameters))
        while block := list(islice(cursor, _MANY)):  # a million of them must not be a million objects at once
            segments, rows = np.array(block, np.int64).T
            for number in np.unique(segments).tolist():
                if number in passing:  # else it cannot be read
                    passing[number][rows[segments == number]] = True
        return passing

    def vectors(self, side: Side, positions: Positions) -> NDArray[Any]:
        """(n, K, D) copy of the sets at these positions."""
        sets = np.empty((len(positions), self.manifest.sets[side], self.manifest.dim), self.manifest.stored)
        views, of_view, rows = self._locate(side, positions)
        for number in np.unique(of_view).tolist():
            sets[of_view == number] = views[number].vectors[rows[of_view == number]]
        return sets

    def intact_vectors(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]:
        """(K, D) copies of the sets of those of these ids whose checksums are right."""
        positions = {item.id: item.position for item in self.find(dict.fromkeys(ids), side) if item.position >= 0}
        wanted = np.zeros(self.rows(side), np.bool_)
        wanted[list(positions.values())] = True
        for view in self._views[side]:
            here = wanted[view.start : view.start + view.rows]
            if here.any():
                for damage in view.segment.verify(here.copy()):
                    here[slice(None) if damage.rows is None else slice(damage.rows.start, damage.rows.stop)] = False
        intact = {key: position for key, position in positions.items() if wanted[position]}
        return dict(zip(intact, self.vectors(side, list(intact.values())), strict=True))

    def items(self, side: Side, positions: Positions) -> list[IndexedItem]:
        """The items at these positions. A position with a tombstone is an error."""
        views, of_view, rows = self._locate(side, positions)
        query = f"SELECT {_COLUMNS} FROM items WHERE segment = ? AND row = ?"
        items = []
        for number, row in zip(of_view.tolist(), rows.tolist(), strict=True):
            item = self._connection.execute(query, (views[number].number, row)).fetchone()
            if item is None:
                raise InputError(f"The item at position {views[number].start + row} of {side!r} was removed.")
            items.append(self._item(item))
        return items

    def matching_ids(self, side: Side, where: Filter) -> list[str]:
        """The ids of all items that pass the filter, even if their vectors cannot be read."""
        condition, parameters = to_sql(where)
        query = f"SELECT id FROM items WHERE side = ? AND {condition} ORDER BY segment, row"
        return [key for (key,) in self._connection.execute(query, (side, *parameters))]

    def find(self, ids: Iterable[str], side: Side | None = None) -> list[IndexedItem]:
        """The items with these ids, on one side or both, in the order of `ids`. Unknown ids are left out."""
        query = f"SELECT {_COLUMNS} FROM items WHERE id = ? AND side IN (?, ?) ORDER BY side"
        sides = ("image", "text") if side is None else (side, side)
        return [self._item(row) for key in ids for row in self._connection.execute(query, (key, *sides))]

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
        """(frames, K, D) of those of these ids that have frames. Damaged ones are left out."""
        if not schema.has_table(self._connection, "frames"):
            return {}
        query = "SELECT items.id, frames.sets, frames.crc FROM items JOIN frames ON frames.item = items.key"
        query += f" WHERE items.side = ? AND items.id IN {KEYS}"
        shape, frames = (self.manifest.sets[side], self.manifest.dim), {}
        for key, blob, crc in self._connection.execute(query, (side, json.dumps(list(ids)))):
            if zlib.crc32(blob) == crc and len(blob) % (shape[0] * shape[1] * schema.FRAME_DTYPE.itemsize) == 0:
                frames[key] = np.frombuffer(blob, schema.FRAME_DTYPE).reshape(-1, *shape)
        return frames

    def caption_ids(self, ids: Iterable[str]) -> list[str]:
        """The ids, id#number, of the texts that name one of these images as their `metadata.item`."""
        # "$" follows "#", so the range holds what starts with the id and a "#": found through the index of ids.
        query = "SELECT id FROM items WHERE side = 'text' AND id >= ? AND id < ?"
        query += " AND json_extract(metadata, '$.item') = ? ORDER BY id"
        return [text for key in ids for (text,) in self._connection.execute(query, (f"{key}#", f"{key}$", key))]

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        """The item hash of each of these ids that is indexed: what has the same hash need not be added again."""
        return self._read_column("hash", ids, side)

    def paths(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        """The path of each of these ids that is indexed."""
        return self._read_column("path", ids, side)

    def _read_column(self, name: str, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        query = f"SELECT id, {name} FROM items WHERE side = ? AND id IN {KEYS}"
        return dict(self._connection.execute(query, (side, json.dumps(list(ids)))))

    def iterate_items(self, side: Side | None = None, where: Filter | str | None = None) -> Iterator[IndexedItem]:
        """All items, one at a time, in the order they lie on disk."""
        condition, parameters = ("1", ()) if where is None else to_sql(where)
        sides = ("image", "text") if side is None else (side, side)
        query = f"SELECT {_COLUMNS} FROM items WHERE side IN (?, ?) AND {condition} ORDER BY segment, row"
        return (self._item(row) for row in self._connection.execute(query, (*sides, *parameters)))

    def search_words(self, text: str, side: Side, k: int = 10, where: Filter | str | None = None) -> list[IndexedItem]:
        """The best `k` items whose caption or id holds a word of `text` and that pass the filter, by BM25.

        Without FTS5, items are ordered by how many of the words they hold, found inside longer words too.
        """
        words = list(dict.fromkeys(_WORD.findall(text)))
        condition, parameters = ("1", ()) if where is None else to_sql(where)
        if words and schema.has_words(self._connection):
            columns = ", ".join(f"items.{name}" for name in _COLUMNS.split(", "))
            query = f"SELECT {columns} FROM words JOIN items ON items.key = words.rowid WHERE words MATCH ?"
            query += f" AND items.side = ? AND {condition} ORDER BY words.rank, items.key LIMIT ?"
            words = [" OR ".join(f'"{word}"' for word in words)]  # quoted: not read as full-text syntax
        else:
            held = " + ".join(["(instr(lower(id || ' ' || ifnull(caption, '')), lower(?)) > 0)"] * len(words)) or "0"
            query = f"SELECT {_COLUMNS} FROM (SELECT *, {held} AS held FROM items) AS items"
            query += f" WHERE held AND side = ? AND {condition} ORDER BY held DESC, key LIMIT ?"
        return [self._item(row) for row in self._connection.execute(query, (*words, side, *parameters, k))]

    def has_items(self, side: Side) -> bool:
        """Whether there are items of a side, even if their vectors cannot be read."""
        query = "SELECT 1 FROM segments WHERE side = ? AND live > 0"
        return self._connection.execute(query, (side,)).fetchone() is not None

    def read_value(self, name: str) -> Any:
        """What `Store.write_value` wrote under this name; None if nothing."""
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
        return Stats(sum(sides.values()), sides, dead, segments, size, schema.has_words(self._connection), change)

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Verify all live rows; what is damaged, by segment and rows. The rest stays usable."""
        damage = list(self.damaged)
        for done, view in enumerate(self._by_number.values()):
            if progress is not None:
                progress("checking", done, len(self._by_number))
            damage += view.segment.verify(view.live)
            for path in self.folder.glob(f"{view.segment.path.stem}.*.seg"):
                try:
                    damage += Segment.open(path).verify()
                except SearchError as error:
                    damage.append(describe_unreadable(path, error))
                except FileNotFoundError:
                    continue  # compacted away since
        try:
            damage += self._verify_frames()
            checked = [why for (why,) in self._connection.execute("PRAGMA quick_check")]
        except sqlite3.DatabaseError as error:  # too damaged to be looked through
            checked = [str(error)]
        return damage + [Damage(schema.NAME, None, why) for why in checked if why != "ok"]

    def _verify_frames(self) -> Iterator[Damage]:
        if not schema.has_table(self._connection, "frames"):
            return
        query = "SELECT items.id, frames.sets, frames.crc FROM frames LEFT JOIN items ON frames.item = items.key"
        for key, blob, crc in self._connection.execute(query):
            why = f"the frames of item {key!r:.80} have changed, so it is found without its moment; remove and add it"
            if key is None:
                yield Damage(schema.NAME, None, "it holds frames of an item that is not there")
            elif zlib.crc32(blob) != crc:
                yield Damage(schema.NAME, None, why)

    def damaged_ids(self, damage: Damage) -> list[str]:
        """The ids of the items that a damage concerns."""
        if damage.number is None:  # the database, or what was attached and can be made again
            return []
        rows = damage.rows or range(2**62)
        query = "SELECT id FROM items WHERE segment = ? AND row >= ? AND row < ? ORDER BY row"
        return [key for (key,) in self._connection.execute(query, (damage.number, rows.start, rows.stop))]

    def _locate(self, side: Side, positions: Positions) -> tuple[list[SegmentView], Int64, Int64]:
        """The views of a side, and for each position which of them it is in and its row there."""
        given = np.asarray(positions, np.int64).reshape(-1)
        if len(given) and (given.min() < 0 or given.max() >= self.rows(side)):
            raise InputError(f"The side {side!r} has positions 0 to {self.rows(side) - 1}, got {given!s:.80}.")
        views = self._views[side]
        starts = np.array([view.start for view in views], np.int64)
        of_view = np.searchsorted(starts, given, side="right") - 1
        return views, of_view, given - starts[of_view]

    def _item(self, columns: tuple[Any, ...]) -> IndexedItem:
        key, side, segment, row, path, caption, metadata, labels, *rest = columns
        position = self._by_number[segment].start + row if segment in self._by_number else -1
        return IndexedItem(key, side, position, path, caption, json.loads(metadata), tuple(json.loads(labels)), *rest)

    def close(self) -> None:
        """End its read transaction. Vectors that were handed out stay readable."""
        self._connection.close()

    __del__ = close
