"""Tables beside the items, changed in the items' transactions: labels, full text, and the frames of videos.

labels    one row for each label of an item: makes `label = 'dog'` a look-up
words     full-text index (FTS5) of ids and captions; missing where this Python's SQLite had no FTS5
frames    the sets of a video's frames as a blob; made with the first video
"""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.search.store import schema
from polysem.search.store.entries import Manifest
from polysem.search.store.segments import Damage

FRAME_DTYPE = np.dtype("<f2")
"""Half the space, and a rounding of a cosine by less than 0.001: what tells frames apart is far more."""
_FRAMES = (
    "CREATE TABLE IF NOT EXISTS frames (item INTEGER PRIMARY KEY, sets BLOB NOT NULL, crc INTEGER NOT NULL)",
    # SQLite may reuse an item's key: frames that stayed would become those of another item.
    "CREATE TRIGGER IF NOT EXISTS frames_follow AFTER DELETE ON items "
    "BEGIN DELETE FROM frames WHERE item = old.key; END",
)
_KEYS = "(SELECT value FROM json_each(?))"
_WORD = re.compile(r"\w+")


def add_items(db: sqlite3.Connection, segment: int, frames: Sequence[NDArray[Any] | None]) -> None:
    """Index the labels and words of the items of a new segment, and store their frames, in the order of its rows."""
    db.execute(
        "INSERT OR IGNORE INTO labels SELECT each.value, items.key FROM items, json_each(items.labels) AS each "
        "WHERE items.segment = ?",
        (segment,),
    )
    if schema.has_table(db, "words"):
        db.execute(
            "INSERT INTO words (rowid, id, caption) SELECT key, id, caption FROM items WHERE segment = ?", (segment,)
        )
    if all(each is None for each in frames):
        return
    for statement in _FRAMES:
        db.execute(statement)
    for row, each in enumerate(frames):
        if each is not None:
            blob = np.ascontiguousarray(each, FRAME_DTYPE).tobytes()
            db.execute(
                "INSERT INTO frames SELECT key, ?, ? FROM items WHERE segment = ? AND row = ?",
                (blob, zlib.crc32(blob), segment, row),
            )


def remove_items(db: sqlite3.Connection, keys: str) -> None:
    """Remove labels and words of the items with these keys (a JSON list), while they are still in their table."""
    if schema.has_table(db, "words"):
        db.execute(
            "INSERT INTO words (words, rowid, id, caption) SELECT 'delete', key, id, caption FROM items "
            f"WHERE key IN {_KEYS}",
            (keys,),
        )
    db.execute(
        "DELETE FROM labels WHERE (label, item) IN (SELECT each.value, items.key "
        f"FROM items, json_each(items.labels) AS each WHERE items.key IN {_KEYS})",
        (keys,),
    )


def optimize_words(db: sqlite3.Connection) -> None:
    """Merge the pieces of the full-text index."""
    if schema.has_table(db, "words"):
        db.execute("INSERT INTO words (words) VALUES ('optimize')")


def has_words(db: sqlite3.Connection) -> bool:
    """Whether there is a full-text index, which both the index and this SQLite must have."""
    return schema.has_table(db, "words") and schema.has_words_module(db)


def search_words(
    db: sqlite3.Connection, columns: str, text: str, side: str, k: int, where: tuple[str, tuple[Any, ...]] | None = None
) -> sqlite3.Cursor:
    """`columns` of the best `k` items whose id or caption holds a word of `text`, by BM25; none if it has no words.

    Without FTS5, items are ordered by how many of the words they hold, found inside longer words too.
    where: a condition on `items` and its parameters.
    """
    words = list(dict.fromkeys(_WORD.findall(text)))
    condition, parameters = where or ("1", ())
    if words and has_words(db):
        # Quoted, a word is a word: nothing of the user's text is read as full-text syntax.
        query = " OR ".join(f'"{word}"' for word in words)
        names = ", ".join(f"items.{name.strip()}" for name in columns.split(","))
        return db.execute(
            f"SELECT {names} FROM words JOIN items ON items.key = words.rowid "
            f"WHERE words MATCH ? AND items.side = ? AND {condition} ORDER BY words.rank, items.key LIMIT ?",
            (query, side, *parameters, k),
        )
    held = " + ".join(["(instr(lower(id || ' ' || ifnull(caption, '')), lower(?)) > 0)"] * len(words)) or "0"
    return db.execute(
        f"SELECT {columns} FROM (SELECT *, {held} AS held FROM items) AS items "
        f"WHERE held AND side = ? AND {condition} ORDER BY held DESC, key LIMIT ?",
        (*words, side, *parameters, k),
    )


def has_frames(db: sqlite3.Connection) -> bool:
    """Whether there is a table of frames."""
    return schema.has_table(db, "frames")


def read_frames(db: sqlite3.Connection, side: str, ids: Sequence[str], manifest: Manifest) -> dict[str, NDArray[Any]]:
    """(frames, K, D) of those of these ids that have frames. Damaged ones are left out: a search goes on without."""
    if not has_frames(db):
        return {}
    query = (
        "SELECT items.id, frames.sets, frames.crc FROM items JOIN frames ON frames.item = items.key "
        f"WHERE items.side = ? AND items.id IN {_KEYS}"
    )
    shape, frames = (manifest.sets[side], manifest.dim), {}
    for key, blob, crc in db.execute(query, (side, json.dumps(list(ids)))):
        if zlib.crc32(blob) == crc and len(blob) % (shape[0] * shape[1] * FRAME_DTYPE.itemsize) == 0:
            frames[key] = np.frombuffer(blob, FRAME_DTYPE).reshape(-1, *shape)
    return frames


def verify_frames(db: sqlite3.Connection) -> Iterator[Damage]:
    """Frames whose checksum is wrong."""
    if not has_frames(db):
        return
    query = "SELECT items.id, frames.sets, frames.crc FROM frames LEFT JOIN items ON frames.item = items.key"
    for key, blob, crc in db.execute(query):
        if key is None:
            yield Damage(schema.NAME, None, "it holds frames of an item that is not there")
        elif zlib.crc32(blob) != crc:
            why = f"the frames of item {key!r:.80} have changed, so it is found without its moment; remove and add it"
            yield Damage(schema.NAME, None, why)
