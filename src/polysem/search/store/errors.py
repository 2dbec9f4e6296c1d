"""Errors of an index on disk, in words a user can act on."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polysem.errors import InputError, no_index_message, os_error_remedy


class SearchError(InputError):
    """An index that is missing, damaged, in use, or made for something else."""


class IndexBusyError(SearchError):
    """Another process is writing the index: try again later."""


_FULL, _FORBIDDEN = (os_error_remedy(OSError(code, "")) for code in (errno.ENOSPC, errno.EACCES))
# The last byte of SQLite's extended codes is the kind of error.
_BY_SQLITE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _FORBIDDEN,
    sqlite3.SQLITE_PERM: _FORBIDDEN,
    sqlite3.SQLITE_CANTOPEN: "Look at the folder and its permissions",
    sqlite3.SQLITE_IOERR: "The disk may be full or failing: look at its space and its health",
    sqlite3.SQLITE_BUSY: "Another process keeps it busy: wait for it or stop it",
    sqlite3.SQLITE_CORRUPT: "The file is damaged: restore it from a copy, or build the index again",
    sqlite3.SQLITE_NOTADB: "The file is not a database: restore it from a copy, or build the index again",
}


@contextmanager
def explain_errors(doing: str, path: Path, *, changes: bool = False) -> Iterator[None]:
    """Turn what the system or the database refuses into a `SearchError`. changes: whether it changes the index."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        kind, why = SearchError, str(error)
        if isinstance(error, OSError):
            why, remedy = error.strerror or why, os_error_remedy(error)
        else:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            remedy = _BY_SQLITE.get(code, "Fix the problem")
            kind = IndexBusyError if code == sqlite3.SQLITE_BUSY else SearchError
        # When COMMIT itself fails, a crash may yet complete it.
        again = " This change was made in full or not at all; run the command again." if changes else ""
        raise kind(f"Cannot {doing} {path}: {why}. {remedy}.{again}") from None


def missing_index_error(folder: str | Path) -> SearchError:
    return SearchError(no_index_message(folder))
