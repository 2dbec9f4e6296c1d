"""Errors of an index on disk, in words a user can act on."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polysem.errors import InputError


class SearchError(InputError):
    """An index that is missing, damaged, in use, or made for something else."""


class IndexBusyError(SearchError):
    """Another process is writing the index: try again later."""


_FULL = "The disk is full: free some space"
_FORBIDDEN = "Choose a folder you may write to, or change its permissions"
_LIMIT = "Files may not grow that large here: raise the limit (`ulimit -f`)"
_BY_ERRNO = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.EFBIG: _LIMIT,
    errno.EMFILE: "Too many files are open: raise the limit (`ulimit -n`)",
}
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
def explain_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn what the system or the database refuses into a `SearchError` with what to do about it."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        kind, why = SearchError, str(error)
        if isinstance(error, OSError):
            why, remedy = error.strerror or why, _BY_ERRNO.get(error.errno or 0)
        else:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            remedy = _BY_SQLITE.get(code)
            kind = IndexBusyError if code == sqlite3.SQLITE_BUSY else SearchError
        raise kind(
            f"Cannot {doing} {path}: {why}. {remedy or 'Repair the cause'} and run the same command again; "
            "nothing of this operation was kept, and what was done before is safe."
        ) from None


def missing_index_error(folder: str | Path) -> SearchError:
    return SearchError(f"{folder} holds no index. Make one with `polysem index COLLECTION --model M --out {folder}`.")
