"""Items by label: a table that makes `label = 'dog'` a look-up, kept in step with the labels of each item."""

from __future__ import annotations

import sqlite3


def added(connection: sqlite3.Connection, segment: int) -> None:
    """Take in the items of a new segment."""
    connection.execute(
        "INSERT OR IGNORE INTO labels SELECT each.value, items.key FROM items, json_each(items.labels) AS each "
        "WHERE items.segment = ?",
        (segment,),
    )


def removed(connection: sqlite3.Connection, keys: str) -> None:
    """Let go of the items with these keys (a JSON list), while they are still in their table."""
    connection.execute(
        "DELETE FROM labels WHERE (label, item) IN (SELECT each.value, items.key "
        "FROM items, json_each(items.labels) AS each WHERE items.key IN (SELECT value FROM json_each(?)))",
        (keys,),
    )
