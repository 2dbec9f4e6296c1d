"""The tables of an index, and how a connection to them is made.

manifest, notes, segments, items   see the statements below
labels    one row for each label of an item: makes `label = 'dog'` a look-up
words     full-text index (FTS5) of ids and captions; missing where this Python's SQLite had no FTS5
frames    the sets of a video's frames as a blob; made with the first video

Labels, words and frames are changed in the transactions of their items.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from polysem.search.store.entries import Manifest
from polysem.search.store.errors import missing_index_error

NAME = "index.sqlite"
_BUSY_SECONDS = 30.0

# `items` holds the live items only; `dead` holds the tombstones of a segment's rows as bits.
# AUTOINCREMENT: the number of a segment that was deleted never names another one, so a map can be kept by number.
_TABLES = """
CREATE TABLE manifest (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE segments (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    side TEXT NOT NULL,
    rows INTEGER NOT NULL,
    live INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    dead BLOB
);
CREATE TABLE items (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    side TEXT NOT NULL,
    segment INTEGER NOT NULL,
    row INTEGER NOT NULL,
    path TEXT,
    caption TEXT,
    metadata TEXT NOT NULL,
    labels TEXT NOT NULL,
    hash TEXT,
    added REAL NOT NULL
);
CREATE TABLE labels (label TEXT, item INTEGER, PRIMARY KEY (label, item)) WITHOUT ROWID;
CREATE UNIQUE INDEX items_by_id ON items (id, side);
CREATE UNIQUE INDEX items_by_place ON items (segment, row);
CREATE INDEX items_by_path ON items (path) WHERE path IS NOT NULL;
"""
_WORDS = """
CREATE VIRTUAL TABLE words USING fts5 (
    id, caption, content = 'items', content_rowid = 'key', tokenize = 'unicode61 remove_diacritics 2'
);
"""
FRAMES = (
    "CREATE TABLE IF NOT EXISTS frames (item INTEGER PRIMARY KEY, sets BLOB NOT NULL, crc INTEGER NOT NULL)",
    # SQLite may reuse an item's key: frames that stayed would become those of another item.
    "CREATE TRIGGER IF NOT EXISTS frames_follow AFTER DELETE ON items "
    "BEGIN DELETE FROM frames WHERE item = old.key; END",
)
FRAME_DTYPE = np.dtype("<f2")
"""Half the space, and a rounding of a cosine by less than 0.001: what tells frames apart is far more."""
KEYS = "(SELECT value FROM json_each(?))"
"""Values given as one parameter, a JSON list."""


def create(path: Path, manifest: Manifest) -> bool:
    """Make the tables, all in one transaction; False if there is an index, of which a manifest is the sign."""
    connection = connect(path, "rwc")
    try:
        if has_table(connection, "manifest"):
            return False
        connection.execute("PRAGMA journal_mode = WAL")
        script = _TABLES + (_WORDS if has_words_module(connection) else "")
        with transaction(connection):
            for statement in script.split(";"):  # `executescript` would commit the transaction around it
                connection.execute(statement)
            connection.executemany("INSERT INTO manifest VALUES (?, ?)", manifest.as_rows())
        return True
    finally:
        connection.close()


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open the database: mode "ro", "rw", or "rwc" to create it. Transactions are begun by hand."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    try:
        return _open(uri)
    except sqlite3.OperationalError:
        # Where this process may not write, SQLite cannot coordinate with a writer. With no log there is none.
        if mode != "ro" or not path.exists() or path.with_name(path.name + "-wal").exists():
            raise
        return _open(uri + "&immutable=1")


def _open(uri: str) -> sqlite3.Connection:
    # SQLite itself serialises what several threads ask of one connection.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite has rolled back by itself after a full disk
            connection.execute("ROLLBACK")
        raise


def data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when another connection commits; in a transaction, that of what it sees."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


def shrink(connection: sqlite3.Connection) -> None:
    """Give back the space of deleted rows, and empty the write-ahead log if no reader needs it now."""
    if has_table(connection, "words"):
        connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    connection.execute("VACUUM")
    connection.execute("PRAGMA busy_timeout = 0")  # without waiting: a reader may stay for days
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000:.0f}")


def read_manifest(connection: sqlite3.Connection, folder: Path) -> Manifest:
    """The manifest, or an error where the folder holds no index."""
    if not has_table(connection, "manifest"):
        raise missing_index_error(folder)
    return Manifest.from_rows(dict(connection.execute("SELECT name, value FROM manifest")))


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone())


def has_words_module(connection: sqlite3.Connection) -> bool:
    """Whether this SQLite has full-text search."""
    return bool(connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone())


def has_words(db: sqlite3.Connection) -> bool:
    """Whether there is a full-text index, which both the index and this SQLite must have."""
    return has_table(db, "words") and has_words_module(db)
