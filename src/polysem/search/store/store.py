"""The store: one folder, one writer at a time, any number of readers."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from polysem.atomic_write import try_lock
from polysem.search.store import schema
from polysem.search.store.entries import Manifest
from polysem.search.store.errors import IndexBusyError, SearchError, explain_errors, missing_index_error
from polysem.search.store.segments import Segment
from polysem.search.store.snapshot import Snapshot
from polysem.search.store.writer import CompactReport, IndexStoreWriter

_LOCK = "writer.lock"
_TRIES = 20


class Store(IndexStoreWriter):
    """An index in a folder: `reading` gives a snapshot; opened with `write`, it can be changed."""

    def __init__(self, folder: Path, write: bool) -> None:
        self.folder, self._path = folder, folder / schema.NAME
        self._guard = threading.RLock()
        self.writable, self._lock = write, -1
        self._watch: sqlite3.Connection | None = None
        self._segments: dict[int, Segment] = {}
        self._snapshot: Snapshot | None = None
        self._seen = -1
        with explain_errors("open", folder):
            if not self._path.exists():
                raise missing_index_error(folder)
        try:
            if write:
                self._lock = _acquire_lock(folder)
                with explain_errors("write to", folder):
                    self._open_writer()
            with explain_errors("open", self._path):
                self._watch = schema.connect(self._path, "ro")
                self.manifest: Manifest = schema.read_manifest(self._watch, folder)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, folder: str | Path, manifest: Manifest) -> Store:
        """Make an index in a folder that has none, and open it for writing."""
        folder = Path(folder)
        with explain_errors("create", folder):
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire_lock(folder)
        try:
            with explain_errors("create", folder / schema.NAME):
                if not schema.create(folder / schema.NAME, manifest):
                    remedy = "Add to it with `polysem add`, choose another folder, or delete it first."
                    raise SearchError(f"{folder} holds an index already. {remedy}")
        finally:
            os.close(descriptor)
        return cls(folder, write=True)

    @classmethod
    def open(cls, folder: str | Path, write: bool = False) -> Store:
        """Open an index. Any number of processes may read it while one writes."""
        return cls(Path(folder), write)

    @contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """A snapshot of the newest commit, held for the block. The same object until something is committed.

        Between blocks nothing is held: a reader that is idle for days does not make the log of a writer grow.
        """
        with self._guard, explain_errors("read", self._path):
            watch, held = self._connection(), self._snapshot
            # One that is held keeps its commit; else `hold` itself checks whether it is still the newest.
            outdated = held is not None and held.holders and schema.data_version(watch) != self._seen
            if held is None or outdated or not held.hold():
                held, self._seen = self._take_snapshot()
                self._snapshot = held
        try:
            yield held
        finally:
            held.release()

    def snapshot(self) -> Snapshot:
        """A snapshot of the newest commit, held while it is referenced. Prefer `reading`: the log grows meanwhile."""
        with self._guard, explain_errors("read", self._path):
            return self._take_snapshot()[0]

    def _take_snapshot(self) -> tuple[Snapshot, int]:
        """A new snapshot, held, and the version of the data that it is of."""
        watch = self._connection()
        for _ in range(_TRIES):
            version = schema.data_version(watch)
            connection = schema.connect(self._path, "ro")
            try:
                connection.execute("BEGIN")  # the first SELECT fixes what it sees
                newest = Snapshot(self.folder, connection, self._segments)
            except BaseException:
                connection.close()
                raise
            # A file that is gone may have been compacted away meanwhile: then there is a newer commit.
            if not (newest.damaged and schema.data_version(watch) != version):
                break
        self._segments = newest.segments
        return newest, version

    def compact(self) -> CompactReport:
        with self._guard:
            self._snapshot, self._segments = None, {}  # files that are deleted take space while they are mapped
            return super().compact()

    def close(self) -> None:
        """Close the files. Snapshots that were handed out stay usable. Safe to call twice."""
        with self._guard:
            self._snapshot, self._segments = None, {}
            if self._watch is not None:
                self._watch.close()
                self._watch = None
            if hasattr(self, "_db"):
                with suppress(sqlite3.Error):
                    self._db.close()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_guard"):
            self.close()


def _acquire_lock(folder: Path) -> int:
    with explain_errors("write to", folder):
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    if not try_lock(descriptor):
        os.close(descriptor)
        remedy = "Wait for it or stop it, then run this again; reading is possible meanwhile."
        raise IndexBusyError(f"{folder} is being written by another process. {remedy}")
    return descriptor
