"""Items by the words of their captions and ids: full-text search, or a slow look at every caption without it."""

from __future__ import annotations

import re
import sqlite3

from polysem.errors import InputError
from polysem.search.store import schema

_WORD = re.compile(r"\w+")


def indexed(connection: sqlite3.Connection) -> bool:
    """Whether words are found through a full-text index, which both the index and this SQLite must have."""
    return schema.has_table(connection, "words") and schema.has_words_module(connection)


def added(connection: sqlite3.Connection, segment: int) -> None:
    """Take in the items of a new segment."""
    if schema.has_table(connection, "words"):
        connection.execute(
            "INSERT INTO words (rowid, id, caption) SELECT key, id, caption FROM items WHERE segment = ?", (segment,)
        )


def removed(connection: sqlite3.Connection, keys: str) -> None:
    """Let go of the items with these keys (a JSON list), while they are still in their table."""
    if schema.has_table(connection, "words"):
        connection.execute(
            "INSERT INTO words (words, rowid, id, caption) SELECT 'delete', key, id, caption FROM items "
            "WHERE key IN (SELECT value FROM json_each(?))",
            (keys,),
        )


def tidied(connection: sqlite3.Connection) -> None:
    """Merge what many additions left in pieces."""
    if schema.has_table(connection, "words"):
        connection.execute("INSERT INTO words (words) VALUES ('optimize')")


def search(connection: sqlite3.Connection, columns: str, text: str, side: str, k: int) -> sqlite3.Cursor:
    """`columns` of the best `k` items that hold every word of `text`; signs between words mean nothing."""
    wanted = _WORD.findall(text)
    if not wanted:
        raise InputError(f"Give at least one word to look for, got {text!r}.")
    if indexed(connection):
        # Quoted, a word is a word: nothing of the user's text is read as full-text syntax.
        query = " ".join(f'"{word}"' for word in wanted)
        return connection.execute(
            f"SELECT {_qualified(columns)} FROM words JOIN items ON items.key = words.rowid "
            "WHERE words MATCH ? AND items.side = ? ORDER BY words.rank, items.key LIMIT ?",
            (query, side, k),
        )
    # Without the full-text module: the same words, found inside longer ones too, in the order of adding.
    held = " AND ".join(["(instr(lower(id), lower(?)) OR instr(lower(ifnull(caption, '')), lower(?)))"] * len(wanted))
    parameters = [word for word in wanted for _ in range(2)]
    return connection.execute(
        f"SELECT {columns} FROM items WHERE {held} AND side = ? ORDER BY key LIMIT ?", (*parameters, side, k)
    )


def _qualified(columns: str) -> str:
    return ", ".join(f"items.{name.strip()}" for name in columns.split(","))
