"""Writing an index: transactions over the database and its segments, and the compaction of segments."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.search.store import schema, segments
from polysem.search.store.entries import SIDES, Manifest, Side, VectorBatch, as_rows, validate_batches
from polysem.search.store.errors import SearchError, explain_errors
from polysem.search.store.schema import KEYS
from polysem.search.store.segments import Column, Damage, Segment, live_rows, segment_path

_MANY = 1000
SEGMENT_BYTES = 2**30
_BLOCK_BYTES = 2**24
_MERGED = 16
_SMALL_BYTES = 2**26  # larger ones wait for `compact`: merging many of them would take long


class AddCounts(NamedTuple):
    """What an `add` did: items that are new, and items that replaced one of the same id."""

    new: int
    replaced: int


class CompactReport(NamedTuple):
    """What a `compact` did.

    freed_bytes: of segments. damaged: segments that were left as they are, because live rows of them are damaged.
    """

    rewritten: int
    dropped_rows: int
    freed_bytes: int
    damaged: list[Damage]


class IndexStoreWriter:
    """The operations of a store that change it: every one happens whole or not at all, whatever stops it.

    They use the one connection that may write, whose owner holds the writer's lock.
    """

    folder: Path
    manifest: Manifest
    writable: bool
    _guard: threading.RLock
    _watch: sqlite3.Connection | None
    _db: sqlite3.Connection

    def _connection(self) -> sqlite3.Connection:
        if self._watch is None:
            raise SearchError(f"The index {self.folder} is closed. Open it again with `Store.open`.")
        return self._watch

    @contextmanager
    def _writing(self, doing: str) -> Iterator[None]:
        """For one operation: alone, on a store that is open for writing, with its errors explained."""
        with self._guard, explain_errors(doing, self.folder, changes=True):
            self._connection()
            if not self.writable:
                raise SearchError(f"The index {self.folder} is open for reading. Open it with `write=True` to change.")
            yield

    def _open_writer(self) -> None:
        self._db = schema.connect(self.folder / schema.NAME, "rw")
        schema.read_manifest(self._db, self.folder)
        if schema.has_table(self._db, "words") and not schema.has_words_module(self._db):
            remedy = "so it can be read and not changed here. Use a Python whose SQLite has FTS5."
            raise SearchError(f"{self.folder} has a full-text index and this SQLite lacks FTS5, {remedy}")
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Delete what a killed writer left: files that no committed operation refers to."""
        numbers = [number for (number,) in self._db.execute("SELECT number FROM segments")]
        named = {segment_path(self.folder, number).stem for number in numbers}
        for path in self.folder.glob("segment-*"):
            # What is attached to a segment has its name and one of its own.
            if path.name.split(".")[0] not in named or path.suffix != ".seg":
                with suppress(PermissionError):  # Windows keeps what a reader has mapped
                    path.unlink(missing_ok=True)

    @contextmanager
    def _change(self) -> Iterator[list[Path]]:
        """Run the block in a transaction. It puts the files it makes into the list it is given."""
        made: list[Path] = []
        finished = False
        try:
            with schema.transaction(self._db):
                yield made
                finished = True
        except BaseException:
            # When COMMIT itself fails, a crash may yet complete it: then only the next opening knows what counts.
            if not finished:
                for path in made:
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
            raise

    def add(self, *batches: VectorBatch) -> AddCounts:
        """Add items, all of them or, on any error, none. An id that is there on the same side is replaced."""
        with self._writing("add to"):
            valid, replaced = validate_batches(batches, self.manifest), 0
            with self._change() as made:
                for batch in valid:
                    rows = list(as_rows(batch.entries))
                    arrays = {"vectors": batch.vectors, **batch.arrays}
                    columns = {name: Column.of(np.asarray(array)) for name, array in arrays.items()}
                    number = self._write(batch.side, len(rows), columns, made)
                    replaced += self._delete((row[0] for row in rows), batch.side)
                    added = time.time()
                    names = "segment, row, side, added, id, path, caption, metadata, labels, hash"
                    values = ((number, position, batch.side, added, *row) for position, row in enumerate(rows))
                    self._db.executemany(f"INSERT INTO items ({names}) VALUES ({', '.join('?' * 10)})", values)
                    self._add_to_tables(number, batch.frames)
            self._merge_small()
        return AddCounts(sum(len(batch.entries) for batch in valid) - replaced, replaced)

    def remove(self, ids: Iterable[str], side: Side | None = None, *, texts: Iterable[str] = ()) -> int:
        """Remove the items with these ids, on one side or both, and these texts, and say how many there were."""
        if isinstance(ids, str):
            raise InputError(f"Give a list of ids, got the text {ids!r}.")
        image_ids, text_ids = list(ids), list(texts)
        with self._writing("remove from"), self._change():
            removed = sum(self._delete(image_ids, each) for each in SIDES if side in (None, each))
            return removed + self._delete(text_ids, "text")

    def attach(self, number: int, name: str, about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store an accelerator beside a segment, until the segment is rewritten; `SegmentView.open_attached` reads it.

        Not part of any transaction: it can be built again.
        """
        if not re.fullmatch(r"[a-z0-9_-]+", name):
            raise InputError(f"Name what is attached with small letters, digits, - and _, got {name!r}.")
        with self._writing("write to"):
            if not self._db.execute("SELECT 1 FROM segments WHERE number = ?", (number,)).fetchone():
                raise InputError(f"Cannot attach {name!r}: no segment {number}; it may have been compacted away.")
            path = segments.attached_path(segment_path(self.folder, number), name)
            segments.write(path, {key: Column.of(np.asarray(array)) for key, array in arrays.items()}, about)

    def write_value(self, name: str, value: Any) -> None:
        """Store a JSON value beside the index, e.g. a measured recall; `Snapshot.read_value` reads it."""
        with self._writing("write to"), self._change():
            self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, json.dumps(value)))

    def _write(self, side: str, rows: int, columns: dict[str, Column], made: list[Path]) -> int:
        """Write a segment and return its number. It is durable before anything refers to it."""
        query = "INSERT INTO segments (side, rows, live, bytes) VALUES (?, ?, ?, 0)"
        cursor = self._db.execute(query, (side, rows, rows))
        number = int(cursor.lastrowid or 0)
        path = segment_path(self.folder, number)
        made.append(path)
        size = segments.write(path, columns)
        self._db.execute("UPDATE segments SET bytes = ? WHERE number = ?", (size, number))
        return number

    def _add_to_tables(self, segment: int, frames: Sequence[NDArray[Any] | None]) -> None:
        """Index the labels and words of the items of a new segment, and store their frames, in the order of rows."""
        query = "INSERT OR IGNORE INTO labels SELECT each.value, items.key FROM items, json_each(items.labels) AS each"
        self._db.execute(f"{query} WHERE items.segment = ?", (segment,))
        if schema.has_table(self._db, "words"):
            query = "INSERT INTO words (rowid, id, caption) SELECT key, id, caption FROM items WHERE segment = ?"
            self._db.execute(query, (segment,))
        if any(each is not None for each in frames):
            for statement in schema.FRAMES:
                self._db.execute(statement)
        query = "INSERT INTO frames SELECT key, ?, ? FROM items WHERE segment = ? AND row = ?"
        for row, each in enumerate(frames):
            if each is not None:
                blob = np.ascontiguousarray(each, schema.FRAME_DTYPE).tobytes()
                self._db.execute(query, (blob, zlib.crc32(blob), segment, row))

    def _delete(self, ids: Iterable[str], side: str) -> int:
        """Remove these ids from one side: their rows get tombstones."""
        rest = iter(ids)
        dead: dict[int, list[int]] = {}
        count = 0
        while some := list(islice(rest, _MANY)):
            query = f"SELECT key, segment, row FROM items WHERE side = ? AND id IN {KEYS}"
            items = self._db.execute(query, (side, json.dumps(some))).fetchall()
            for _, segment, row in items:
                dead.setdefault(segment, []).append(row)
            keys = json.dumps([key for key, _, _ in items])
            if schema.has_table(self._db, "words"):
                query = "INSERT INTO words (words, rowid, id, caption) SELECT 'delete', key, id, caption FROM items"
                self._db.execute(f"{query} WHERE key IN {KEYS}", (keys,))
            query = "SELECT each.value, items.key FROM items, json_each(items.labels) AS each"
            self._db.execute(f"DELETE FROM labels WHERE (label, item) IN ({query} WHERE items.key IN {KEYS})", (keys,))
            self._db.execute(f"DELETE FROM items WHERE key IN {KEYS}", (keys,))
            count += len(items)
        for number, rows in dead.items():
            total, bits = self._db.execute("SELECT rows, dead FROM segments WHERE number = ?", (number,)).fetchone()
            live = live_rows(bits, total)
            live[rows] = False
            values = (np.packbits(~live).tobytes(), int(live.sum()), number)
            self._db.execute("UPDATE segments SET dead = ?, live = ? WHERE number = ?", values)
        return count

    def compact(self) -> CompactReport:
        """Give back the space of removed items and merge small segments. Readers go on with what they have."""
        with self._writing("compact"):
            before = self._bytes()
            numbers = self._db.execute("SELECT number FROM segments").fetchall()
            done, damaged = self._rewrite(number for (number,) in numbers)
            schema.shrink(self._db)
            dropped = sum(len(one.live) - one.count for one in done)
            return CompactReport(len(done), dropped, before - self._bytes(), damaged)

    def _merge_small(self) -> None:
        """Merge segments of one side and similar size when there are many: every reader holds each file open.

        Tiers are a factor of `_MERGED` apart, so an item is copied about log(n) / log(`_MERGED`) times in its life.
        """
        query = "SELECT number, side, live FROM segments WHERE bytes < ?"
        rows = self._db.execute(query, (_SMALL_BYTES,)).fetchall()
        tiers = sorted((side, int(math.log(max(1, live), _MERGED)), number) for number, side, live in rows)
        for _, same in groupby(tiers, key=lambda one: one[:2]):
            numbers = [number for *_, number in same]
            if len(numbers) >= _MERGED:
                # The items just added are committed: a failure here must not look as if they were not.
                with suppress(OSError, sqlite3.Error, SearchError):
                    self._rewrite(numbers)

    def _rewrite(self, numbers: Iterable[int]) -> tuple[list[CompactionInput], list[Damage]]:
        """Copy the live rows of these segments into new ones and delete the files; what was done, what could not."""
        inputs, damaged = self._compaction_inputs(numbers)
        done: list[CompactionInput] = []
        with self._change() as made:
            for group in plan_compaction(inputs):
                if rows := sum(one.count for one in group):
                    number, start = self._write(group[0].side, rows, live_columns(group), made), 0
                    for one in group:  # its items are in the new segment now
                        moved = enumerate(np.flatnonzero(one.live).tolist(), start)
                        query = "UPDATE items SET segment = ?, row = ? WHERE segment = ? AND row = ?"
                        self._db.executemany(query, ((number, new, one.number, old) for new, old in moved))
                        start += one.count
                self._db.executemany("DELETE FROM segments WHERE number = ?", ((one.number,) for one in group))
                done += group
        for one in done:
            for path in self.folder.glob(f"{segment_path(self.folder, one.number).stem}.*"):
                with suppress(OSError):  # the next writer deletes it
                    path.unlink()
        return done, damaged

    def _compaction_inputs(self, numbers: Iterable[int]) -> tuple[list[CompactionInput], list[Damage]]:
        """The segments worth rewriting, and those that must not be: a new checksum would hide their damage."""
        inputs, damaged = [], []
        query = "SELECT side, rows, dead FROM segments WHERE number = ?"
        for number in numbers:
            side, rows, bits = self._db.execute(query, (number,)).fetchone()
            path, live = segment_path(self.folder, number), live_rows(bits, rows)
            try:
                one = CompactionInput(number, side, live, Segment.open(path) if live.any() else None)
                if one.segment:
                    one.segment.require((rows, self.manifest.sets[side], self.manifest.dim))
            except (SearchError, FileNotFoundError, PermissionError) as error:
                damaged.append(segments.describe_unreadable(path, error))
                continue
            if one.count < rows or one.bytes < SEGMENT_BYTES // 2:  # worth rewriting
                wrong = one.segment.verify(live) if one.segment else []
                damaged += wrong
                inputs += [] if wrong else [one]
        return inputs, damaged

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("segment-*"))


@dataclass(frozen=True)
class CompactionInput:
    """A segment that may be rewritten. segment: None if all its rows have tombstones, so that none is read."""

    number: int
    side: str
    live: NDArray[np.bool_]
    segment: Segment | None

    @property
    def count(self) -> int:
        return int(self.live.sum())

    @property
    def bytes(self) -> int:
        """Of the live rows."""
        return 0 if self.segment is None else self.segment.bytes * self.count // len(self.live)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for segments that may share a file."""
        return (self.side, () if self.segment is None else self.segment.signature)


def plan_compaction(inputs: Iterable[CompactionInput]) -> Iterator[list[CompactionInput]]:
    """Groups of segments to rewrite into one each: those with tombstones, and several small ones."""
    groups: list[list[CompactionInput]] = []
    for _, same in groupby(sorted(inputs, key=lambda one: (one.kind, one.number)), key=lambda one: one.kind):
        groups.append([])
        for one in same:
            if sum(each.bytes for each in groups[-1]) + one.bytes > SEGMENT_BYTES:
                groups.append([])
            groups[-1].append(one)
    return (group for group in groups if len(group) > 1 or not all(one.live.all() for one in group))


def live_columns(group: list[CompactionInput]) -> dict[str, Column]:
    """The live rows of all arrays of a group, in the order of the group, read a block at a time."""
    used = [(one.live, one.segment) for one in group if one.segment is not None]

    def read(name: str) -> Iterator[NDArray[Any]]:
        for live, segment in used:
            step = max(1, _BLOCK_BYTES // max(1, segment.arrays[name][:1].nbytes))
            for start in range(0, len(live), step):
                rows = live[start : start + step]
                if rows.any():
                    yield segment.read(name, range(start, start + len(rows)))[rows]

    return {name: Column(array.dtype, array.shape[1:], read(name)) for name, array in used[0][1].arrays.items()}
