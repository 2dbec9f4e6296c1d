"""The sets of a video's frames, beside its own: a blob in the database, added and removed in the item's transaction.

The table is made with the first video, so an index of pictures has none.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.search.store import schema
from polysem.search.store.manifest import Manifest
from polysem.search.store.segments import Damage

STORED = np.dtype("<f2")
"""Half the space, and a rounding of a cosine by less than 0.001: what tells frames apart is far more."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS frames (item INTEGER PRIMARY KEY, sets BLOB NOT NULL, crc INTEGER NOT NULL)",
    # SQLite may give an item's key to another one later: frames that stayed would become those of a stranger.
    "CREATE TRIGGER IF NOT EXISTS frames_follow AFTER DELETE ON items "
    "BEGIN DELETE FROM frames WHERE item = old.key; END",
)
_OF = "(SELECT value FROM json_each(?))"


def added(db: sqlite3.Connection, segment: int, given: Sequence[NDArray[Any] | None]) -> None:
    """Keep the frames of the items that lie in this segment, in the order of its rows."""
    if all(each is None for each in given):
        return
    for statement in _TABLES:
        db.execute(statement)
    for row, each in enumerate(given):
        if each is not None:
            blob = np.ascontiguousarray(each, STORED).tobytes()
            db.execute(
                "INSERT INTO frames SELECT key, ?, ? FROM items WHERE segment = ? AND row = ?",
                (blob, zlib.crc32(blob), segment, row),
            )


def kept(db: sqlite3.Connection) -> bool:
    """Whether there is a table of frames."""
    return schema.has_table(db, "frames")


def read(db: sqlite3.Connection, side: str, ids: Sequence[str], manifest: Manifest) -> dict[str, NDArray[Any]]:
    """(frames, K, D) of those of these ids that have frames. What is damaged is left out: a search goes on without."""
    if not kept(db):
        return {}
    query = (
        "SELECT items.id, frames.sets, frames.crc FROM items JOIN frames ON frames.item = items.key "
        f"WHERE items.side = ? AND items.id IN {_OF}"
    )
    found = {}
    for key, blob, crc in db.execute(query, (side, json.dumps(list(ids)))):
        if zlib.crc32(blob) == crc and len(blob) % _size(side, manifest) == 0:
            found[key] = np.frombuffer(blob, STORED).reshape(-1, manifest.sets[side], manifest.dim)
    return found


def damaged(db: sqlite3.Connection) -> Iterator[Damage]:
    """What is not as it was written."""
    if not kept(db):
        return
    query = "SELECT items.id, frames.sets, frames.crc FROM frames LEFT JOIN items ON frames.item = items.key"
    for key, blob, crc in db.execute(query):
        if key is None:
            yield Damage(schema.NAME, None, "it holds frames of an item that is not there")
        elif zlib.crc32(blob) != crc:
            why = f"the frames of item {key!r:.80} have changed, so it is found without its moment; remove and add it"
            yield Damage(schema.NAME, None, why)


def _size(side: str, manifest: Manifest) -> int:
    return manifest.sets[side] * manifest.dim * STORED.itemsize
