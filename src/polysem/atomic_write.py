"""Atomic and durable file writes, and locks that end with their process: one place for the whole package.

Atomic: a reader sees the old file or the new one, never half of one. Durable: it survives a power cut.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two writers of one file apart there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replace_file(path: Path, durable: bool = False) -> Iterator[Path]:
    """Replace `path` atomically by what the block writes to the temporary path beside it, which has the same ending.

    A block that fails leaves `path` alone. durable: flush the file and its folder entry to disk before returning.
    """
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        yield partial
        if durable:
            sync(partial)
        os.replace(partial, path)
        if durable:
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str, durable: bool = False) -> None:
    """Write a text file in UTF-8 atomically."""
    with replace_file(path, durable) as partial:
        partial.write_text(text, encoding="utf-8")


def create_file(path: Path, content: bytes) -> bool:
    """Create `path` atomically and durably; False if it exists already, or another process creates it first."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        sync(partial)
        try:
            os.link(partial, path)  # unlike a rename, never replaces
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write every byte to an open file: the system may take fewer than it is given."""
    rest = memoryview(content).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync(path: Path) -> None:
    """Flush the content of a file to disk: a power cut must not leave a name without content."""
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)  # Windows flushes only what it may write
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names of new files in `folder` durable, where the system offers that."""
    if os.name != "nt":
        sync(folder)


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file; False if another process has it.

    The system releases the lock when the file is closed, however the process ends.
    """
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def hold_lock(path: Path, busy: Exception) -> Iterator[None]:
    """Hold the exclusive lock of a folder, or of a file that is created if missing, within the block.

    busy: raised if another process holds the lock.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not try_lock(descriptor):
            raise busy
        yield
    finally:
        os.close(descriptor)
