"""Writes that survive a power cut, and a lock that dies with its process."""

from __future__ import annotations

import os
from pathlib import Path

from polysem.data.store.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two writers of one rank apart there
    fcntl = None  # type: ignore[assignment]


def sync_folder(folder: Path) -> None:
    """Make the names of new files in `folder` durable, where the system offers that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(path: Path, content: bytes) -> bool:
    """Create `path` whole or not at all; False if it exists already, whoever else creates it at this moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, never replaces
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write every byte: the system may take fewer than it is given."""
    rest = memoryview(content).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def lock(descriptor: int, path: Path) -> None:
    """Refuse a second writer of the same file. The system releases the lock however the first one ends."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(
            f"{path} is being written by another process. Wait for it or stop it, then run this again; to extract "
            "with several processes start them together with `accelerate launch` or `torchrun`."
        ) from None
