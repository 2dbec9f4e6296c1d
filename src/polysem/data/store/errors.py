"""What can go wrong with a store, in words a user can act on."""

from __future__ import annotations

import errno
from pathlib import Path

from polysem.errors import InputError


class StoreError(InputError):
    """A feature store that is missing, damaged, in use, or made for something else."""


def failed(doing: str, path: Path, error: OSError) -> StoreError:
    """A `StoreError` for what the operating system refused, with what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "The disk is full: free some space"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "Choose a folder you may write to, or change its permissions"
    elif error.errno == errno.EFBIG:
        remedy = "Files may not grow that large here: raise the limit, or ask for smaller shards"
    else:
        remedy = "Repair the cause"
    return StoreError(
        f"Cannot {doing} {path}: {error.strerror or error}. {remedy} and run the same command again; "
        "what was committed before is safe and is not done twice."
    )
