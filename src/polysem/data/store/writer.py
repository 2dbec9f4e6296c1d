"""Writing features so that whatever stops the writer, the store stays whole and the work done stays done."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from polysem.atomic_write import sync_folder, try_lock, write_all
from polysem.data.collection import Skipped
from polysem.data.store import layout
from polysem.data.store.reader import FeatureStore
from polysem.errors import InputError

SHARD_BYTES = 2**30
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class StoreEntry(NamedTuple):
    """The features of one item: values (n, D), and its global feature (G,) where the encoder makes one."""

    id: str
    values: NDArray[np.floating[Any]]
    summary: NDArray[np.floating[Any]] | None = None


class StoreWriter:
    """Adds items to a feature store, new or begun earlier, as one of several ranks.

    `add` writes a batch, `commit` makes everything added so far count. `done` holds the ids that have features: those
    committed by any rank before this writer was opened, and those added since; `skipped` the ids that were left out.

    Args:
        folder: of the store; created if missing.
        manifest: what the features are. A store of another kind is refused.
        rank: number of this process among those that write.
    """

    def __init__(
        self, folder: str | Path, manifest: layout.FeatureManifest, rank: int = 0, shard_bytes: int = SHARD_BYTES
    ) -> None:
        folder = Path(folder)
        self.folder, self.manifest, self.rank, self.shard_bytes = folder, manifest, rank, shard_bytes
        self._pending: list[layout.JournalRecord] = []
        self._journal = self._shard = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise layout.os_failure("create", folder, error) from None
        layout.write_manifest(folder, manifest)
        try:
            self._open_journal()
            self._recover()
        except OSError as error:
            self.close()
            raise layout.os_failure("open", layout.journal_path(folder, rank), error) from None
        except BaseException:
            self.close()
            raise
        store = FeatureStore(folder, manifest)
        self.done: set[str] = set(store.ids)
        self.skipped: set[str] = {skip.what for skip in store.skipped}
        self._summary: int | None = store.summary_dim if store.ids else None

    def _open_journal(self) -> None:
        path = layout.journal_path(self.folder, self.rank)
        self._journal = os.open(path, _FLAGS, 0o666)
        if not try_lock(self._journal):
            raise layout.StoreError(
                f"{path} is being written by another process. Wait for it or stop it, then run this again; to extract "
                "with several processes start them together with `accelerate launch` or `torchrun`."
            )
        sync_folder(self.folder)

    def _recover(self) -> None:
        """Go back to the last commit: drop a torn line and every value that no line speaks of."""
        self._journal_end, self._number, self._values = 0, 0, 0
        for record, end in layout.read_journal(layout.journal_path(self.folder, self.rank)):
            self._journal_end = end
            if record.ids:
                self._number, self._values = record.shard, record.start + record.count_values(self.manifest.dim)
        os.ftruncate(self._journal, self._journal_end)
        for path in self.folder.glob(f"shard-{self.rank:03d}-*.bin"):
            if int(path.stem.split("-")[2]) > self._number:
                path.unlink()
        self._open_shard()
        if os.fstat(self._shard).st_size < self._bytes(self._values):
            path = layout.shard_path(self.folder, self.rank, self._number)
            cut = f"{path} is shorter than its journal says: it was cut after it was written"
            raise layout.StoreError(f"{cut}. Restore the file, or extract into another folder.")
        self._rewind()

    def _open_shard(self) -> None:
        self._shard = os.open(layout.shard_path(self.folder, self.rank, self._number), _FLAGS, 0o666)
        self._committed = self._values
        sync_folder(self.folder)

    def _rewind(self) -> None:
        """Cut both files to what is committed, and go on writing there."""
        self._pending.clear()
        self._values = self._committed
        for descriptor, end in ((self._shard, self._bytes(self._values)), (self._journal, self._journal_end)):
            os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)

    def _bytes(self, values: int) -> int:
        return values * self.manifest.stored.itemsize

    def add(self, entries: Iterable[StoreEntry], skipped: Sequence[Skipped] = ()) -> None:
        """Write a batch, which counts from the next `commit` on. An entry that cannot be stored refuses all of it."""
        batch = list(entries)
        rows = [self._to_stored(entry) for entry in batch]
        for key, count in Counter(entry.id for entry in batch).items():
            if count > 1 or key in self.done:
                raise layout.StoreError(f"Item {key!r} is in the store already. Ids name items: make them unique.")
        if self._bytes(self._values) >= self.shard_bytes:
            self._next_shard()
        content = np.concatenate(rows).view(np.uint8).data if rows else memoryview(b"")
        record = layout.JournalRecord(
            shard=self._number,
            start=self._values,
            ids=[entry.id for entry in batch],
            lengths=[len(entry.values) for entry in batch],
            summary=self._summary or 0,
            crc32=zlib.crc32(content),
            skipped=[(skip.what, skip.why) for skip in skipped],
        )
        try:
            write_all(self._shard, content)
        except OSError as error:
            self._abort(error)
        self._values += record.count_values(self.manifest.dim)
        self._pending.append(record)
        self.done.update(record.ids)
        self.skipped.update(skip.what for skip in skipped)

    def commit(self) -> None:
        """Make everything added so far durable: the values first, then the lines that speak of them."""
        if not self._pending:
            return
        lines = b"".join(record.to_line() for record in self._pending)
        try:
            os.fsync(self._shard)
            write_all(self._journal, lines)
            os.fsync(self._journal)
        except OSError as error:
            self._abort(error)
        self._journal_end += len(lines)
        self._committed = self._values
        self._pending.clear()

    def _next_shard(self) -> None:
        self.commit()
        os.close(self._shard)
        self._shard = -1
        self._number, self._values = self._number + 1, 0
        try:
            self._open_shard()
        except OSError as error:
            raise layout.os_failure("create", layout.shard_path(self.folder, self.rank, self._number), error) from None

    def _abort(self, error: OSError) -> None:
        """Leave the files as the last commit left them, as far as the disk still allows, and say what happened."""
        self.done.difference_update(*(record.ids for record in self._pending))
        with suppress(OSError):
            self._rewind()
        raise layout.os_failure("write to", self.folder, error) from None

    def _to_stored(self, entry: StoreEntry) -> NDArray[Any]:
        """The entry's values in the form they are stored in, flat."""
        values, summary, dim = entry.values, entry.summary, self.manifest.dim
        if values.ndim != 2 or values.shape[1] != dim or not len(values):
            given = f"got {values.shape}"
            raise InputError(f"Item {entry.id!r}: features must be (tokens, {dim}) with at least one token, {given}.")
        width = 0 if summary is None else summary.size
        if self._summary is None:
            self._summary = width
        elif width != self._summary:
            raise InputError(f"Item {entry.id!r} has a global feature of width {width}, the others {self._summary}.")
        flat = values.reshape(-1) if summary is None else np.concatenate([values.reshape(-1), summary.reshape(-1)])
        with np.errstate(over="ignore"):
            stored = flat.astype(self.manifest.stored)
        if np.isfinite(stored).all():
            return stored
        if not np.isfinite(flat).all():
            raise InputError(
                f"Item {entry.id!r}: the features hold NaN or infinity and are not stored. Check the item's file and "
                "the encoder's weights, or leave the item out of the collection."
            )
        raise InputError(
            f"Item {entry.id!r}: a feature of {np.abs(flat).max():.4g} is beyond {self.manifest.dtype}, which ends at "
            f"{np.finfo(self.manifest.dtype).max:.4g}. Store as float32 (--dtype float32), in another folder."
        )

    def close(self) -> None:
        """Let go of the files without committing. Safe to call twice."""
        for descriptor in (self._shard, self._journal):
            if descriptor >= 0:
                os.close(descriptor)
        self._shard = self._journal = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Commit what was added, whatever ends the block: it was checked and need not be done again."""
        try:
            self.commit()
        finally:
            self.close()
