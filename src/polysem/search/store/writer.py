"""Changing an index so that every operation happens whole or not at all, whatever stops it."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError
from polysem.search.store import frames, fulltext, labels, schema, segments
from polysem.search.store.compaction import Old, crowds, gathered, groups
from polysem.search.store.entries import SIDES, Batch, Side, as_rows, checked
from polysem.search.store.errors import SearchError
from polysem.search.store.rows import attached_path, live_rows, segment_path, unreadable
from polysem.search.store.segments import Column, Damage, Segment

T = TypeVar("T")
_MANY = 1000


class Added(NamedTuple):
    """What an `add` did: items that are new, and items that replaced one of the same id."""

    new: int
    replaced: int


class Compacted(NamedTuple):
    """What a `compact` did.

    freed_bytes: of segments. damaged: segments that were left as they are, because live rows of them are damaged.
    """

    rewritten: int
    dropped_rows: int
    freed_bytes: int
    damaged: list[Damage]


class Writer:
    """The one connection that changes an index. Its owner holds the writer's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._db = schema.connect(folder / schema.NAME, "rw")
        try:
            self.manifest = schema.read_manifest(self._db, folder)
            if schema.has_table(self._db, "words") and not schema.has_words_module(self._db):
                raise SearchError(
                    f"{folder} has a full-text index and this Python's SQLite lacks FTS5, so it can be read and not "
                    "changed here. Use a Python whose SQLite has FTS5."
                )
            self._remove_leftovers()
        except BaseException:
            self._db.close()
            raise

    def _remove_leftovers(self) -> None:
        """Delete what a killed writer left: files that no committed operation speaks of."""
        named = {
            segment_path(self.folder, number).stem for (number,) in self._db.execute("SELECT number FROM segments")
        }
        for path in self.folder.glob("segment-*"):
            # What is attached to a segment has its name and one of its own.
            if path.name.split(".")[0] not in named or path.suffix != ".seg":
                with suppress(PermissionError):  # Windows keeps what a reader has mapped
                    path.unlink(missing_ok=True)

    def _change(self, work: Callable[[list[Path]], T]) -> T:
        """Run `work` in a transaction. It puts the files it makes into the list it is given."""
        made: list[Path] = []
        finished = False
        try:
            with schema.transaction(self._db):
                result = work(made)
                finished = True
            return result
        except BaseException:
            # When COMMIT itself fails, a crash may yet complete it: then only the next opening knows what counts.
            if not finished:
                for path in made:
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
            raise

    def add(self, batches: Sequence[Batch]) -> Added:
        given = [checked(batch, self.manifest) for batch in batches if batch.entries]
        for side in SIDES:
            ids = [entry.id for batch in given if batch.side == side for entry in batch.entries]
            if len(set(ids)) != len(ids):
                raise InputError(
                    f"Two batches of the side {side!r} hold the same id. Ids name items: make them unique."
                )

        def work(made: list[Path]) -> Added:
            replaced = 0
            for batch in given:
                rows = list(as_rows(batch.entries))
                columns = {"vectors": Column.of(batch.vectors)}
                columns |= {name: Column.of(np.asarray(array)) for name, array in batch.arrays.items()}
                number = self._write(batch.side, len(rows), columns, made)
                replaced += self._forget((row[0] for row in rows), batch.side)
                now = time.time()
                self._db.executemany(
                    "INSERT INTO items (segment, row, side, added, id, path, caption, metadata, labels, hash) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    ((number, place, batch.side, now, *row) for place, row in enumerate(rows)),
                )
                labels.added(self._db, number)
                fulltext.added(self._db, number)
                frames.added(self._db, number, batch.frames)
            return Added(sum(len(batch.entries) for batch in given) - replaced, replaced)

        added = self._change(work)
        self._merge_crowd()
        return added

    def remove(self, ids: Iterable[str], side: Side | None, texts: Iterable[str] = ()) -> int:
        if isinstance(ids, str):
            raise InputError(f"Give a list of ids, got the text {ids!r}.")
        wanted, also = list(ids), list(texts)

        def work(_: list[Path]) -> int:
            removed = sum(self._forget(wanted, each) for each in SIDES if side in (None, each))
            return removed + self._forget(also, "text")

        return self._change(work)

    def attach(self, number: int, name: str, about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        if not re.fullmatch(r"[a-z0-9_-]+", name):
            raise InputError(f"Name what is attached with small letters, digits, - and _, got {name!r}.")
        if not self._db.execute("SELECT 1 FROM segments WHERE number = ?", (number,)).fetchone():
            raise InputError(f"There is no segment {number} to attach {name!r} to: it may have been compacted away.")
        path = attached_path(segment_path(self.folder, number), name)
        segments.write(path, {key: Column.of(np.asarray(array)) for key, array in arrays.items()}, about)

    def note(self, name: str, value: str) -> None:
        self._change(lambda _: self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, value)))

    def _write(self, side: str, rows: int, columns: dict[str, Column], made: list[Path]) -> int:
        """Write a segment, announce it and return its number. It is durable before anything refers to it."""
        cursor = self._db.execute(
            "INSERT INTO segments (side, rows, live, bytes) VALUES (?, ?, ?, 0)", (side, rows, rows)
        )
        number = int(cursor.lastrowid or 0)
        path = segment_path(self.folder, number)
        made.append(path)
        size = segments.write(path, columns)
        self._db.execute("UPDATE segments SET bytes = ? WHERE number = ?", (size, number))
        return number

    def _forget(self, ids: Iterable[str], side: str) -> int:
        """Take these ids out of one side: their items go, their rows are dead from now on."""
        rest = iter(ids)
        dead: dict[int, list[int]] = {}
        count = 0
        while some := list(islice(rest, _MANY)):
            found = self._db.execute(
                "SELECT key, segment, row FROM items WHERE side = ? AND id IN (SELECT value FROM json_each(?))",
                (side, json.dumps(some)),
            ).fetchall()
            for _, segment, row in found:
                dead.setdefault(segment, []).append(row)
            keys = json.dumps([key for key, _, _ in found])
            fulltext.removed(self._db, keys)
            labels.removed(self._db, keys)
            self._db.execute("DELETE FROM items WHERE key IN (SELECT value FROM json_each(?))", (keys,))
            count += len(found)
        for number, rows in dead.items():
            self._bury(number, rows)
        return count

    def _bury(self, number: int, rows: list[int]) -> None:
        """Mark rows of a segment as dead."""
        total, bits = self._db.execute("SELECT rows, dead FROM segments WHERE number = ?", (number,)).fetchone()
        live = live_rows(bits, total)
        live[rows] = False
        self._db.execute(
            "UPDATE segments SET dead = ?, live = ? WHERE number = ?",
            (np.packbits(~live).tobytes(), int(live.sum()), number),
        )

    def compact(self) -> Compacted:
        before = self._bytes()
        done, damaged = self._rewrite(
            number for (number,) in self._db.execute("SELECT number FROM segments").fetchall()
        )
        fulltext.tidied(self._db)
        self._db.execute("VACUUM")
        schema.shrink_log(self._db)
        dropped = sum(len(one.live) - one.count for one in done)
        return Compacted(len(done), dropped, before - self._bytes(), damaged)

    def _merge_crowd(self) -> None:
        """Merge segments of like size when there are many: each is a file that every reader holds open."""
        found = self._db.execute("SELECT number, side, live, bytes FROM segments").fetchall()
        for crowd in crowds(found):
            # The items just added are committed: what hinders this here must not look as if they were not.
            with suppress(OSError, sqlite3.Error, SearchError):
                self._rewrite(crowd)

    def _rewrite(self, numbers: Iterable[int]) -> tuple[list[Old], list[Damage]]:
        """Copy the live rows of these segments into new ones and delete the files; what was done, what could not."""
        old, damaged = self._candidates(numbers)

        def work(made: list[Path]) -> list[Old]:
            done: list[Old] = []
            for group in groups(old):
                if rows := sum(one.count for one in group):
                    number = self._write(group[0].side, rows, gathered(group), made)
                    self._move(group, number)
                self._db.executemany("DELETE FROM segments WHERE number = ?", ((one.number,) for one in group))
                done += group
            return done

        done = self._change(work)
        for one in done:
            for path in self.folder.glob(f"{segment_path(self.folder, one.number).stem}.*"):
                with suppress(OSError):  # the next writer deletes it
                    path.unlink()
        return done, damaged

    def _candidates(self, numbers: Iterable[int]) -> tuple[list[Old], list[Damage]]:
        """The segments worth rewriting, and those that may not be: a new checksum would make damage look right."""
        found, damaged = [], []
        for number in numbers:
            side, rows, bits = self._db.execute(
                "SELECT side, rows, dead FROM segments WHERE number = ?", (number,)
            ).fetchone()
            path, live = segment_path(self.folder, number), live_rows(bits, rows)
            try:
                one = Old(number, side, live, Segment.open(path) if live.any() else None)
                if one.segment:
                    one.segment.require((rows, self.manifest.sets[side], self.manifest.dim))
            except (SearchError, FileNotFoundError, PermissionError) as error:
                damaged.append(unreadable(path, error))
                continue
            wrong = one.segment.verify(live) if one.segment and one.worth_rewriting else []
            damaged += wrong
            if one.worth_rewriting and not wrong:
                found.append(one)
        return found, damaged

    def _move(self, group: list[Old], number: int) -> None:
        """Let the items of a group refer to their rows in the new segment."""
        start = 0
        for one in group:
            places: NDArray[np.int64] = np.flatnonzero(one.live)
            self._db.executemany(
                "UPDATE items SET segment = ?, row = ? WHERE segment = ? AND row = ?",
                ((number, start + place, one.number, row) for place, row in enumerate(places.tolist())),
            )
            start += len(places)

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("segment-*"))

    def close(self) -> None:
        self._db.close()
