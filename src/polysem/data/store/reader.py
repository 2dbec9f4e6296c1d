"""Reading features: views into the files for one item, padded copies for a batch, never the whole set."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polysem.data.collection import Skipped
from polysem.data.store import layout
from polysem.errors import InputError

if TYPE_CHECKING:
    from polysem.features import LocalFeatures

_BLOCK = 2**24


class FeatureStore:
    """The features of a collection on disk, as they were committed when it was opened.

    `store[id]` is a read-only (n, D) view; `store.batch(positions)` a padded `LocalFeatures`. Positions count `ids`.

    Attributes:
        ids: of its items, rank by rank in the order of extraction.
        lengths: (items,) number of tokens of each.
        skipped: the items that have no features, and why.
        dim: width of a token.
        summary_dim: width of the global feature of each item, 0 if the encoder makes none.
        fingerprint: of the encoder that made the features.
        nbytes: of all values.

    Example:
        >>> import numpy as np
        >>> from polysem.data.store import FeatureManifest, FeatureStore, StoreEntry, StoreWriter
        >>> with StoreWriter("features", FeatureManifest("photos", fingerprint="toy", dim=2)) as writer:
        ...     writer.add([StoreEntry("a.jpg", np.ones((3, 2))), StoreEntry("b.jpg", np.zeros((1, 2)))])
        >>> store = FeatureStore.open("features")
        >>> store.ids, store["a.jpg"].shape
        (['a.jpg', 'b.jpg'], (3, 2))
        >>> store.batch([0, 1]).values.shape
        torch.Size([2, 3, 2])
    """

    def __init__(self, folder: Path, manifest: layout.FeatureManifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.dim, self.fingerprint = manifest.dim, manifest.fingerprint
        self._maps: dict[int, NDArray[Any]] = {}
        self._descriptors: dict[int, int] = {}
        self.ids: list[str] = []
        skipped: dict[str, str] = {}
        sizes: dict[Path, int] = {}  # committed values of each shard
        widths: set[int] = set()
        # Of each item: the number of its shard, its first value there and its number of tokens.
        columns: list[NDArray[np.int64]] = [np.empty((3, 0), np.int64)]
        for path, record in layout.read_records(folder):
            skipped.update(record.skipped)
            if not record.ids:
                continue
            # Batches of a shard come in order, so the last one says how far it reaches.
            sizes[path] = record.start + record.count_values(self.dim)
            widths.add(record.summary)
            lengths = np.asarray(record.lengths, np.int64)
            values = lengths * self.dim + record.summary
            shards = np.full_like(lengths, list(sizes).index(path))
            columns.append(np.stack([shards, record.start + np.cumsum(values) - values, lengths]))
            self.ids += record.ids
        if len(widths) > 1:
            mixed = f"{folder} mixes global features of widths {sorted(widths)}"
            raise layout.StoreError(f"{mixed}. Extract into another folder.")
        self.summary_dim = max(widths, default=0)
        self._positions = {key: position for position, key in enumerate(self.ids)}
        # An item that was skipped once and extracted on a later try is no longer missing.
        self.skipped = tuple(Skipped(key, why) for key, why in skipped.items() if key not in self._positions)
        self._shard, self._start, self.lengths = np.concatenate(columns, axis=1)
        self._files, self._sizes = list(sizes), list(sizes.values())
        self.nbytes = sum(self._sizes) * manifest.stored.itemsize

    @classmethod
    def open(cls, folder: str | Path) -> FeatureStore:
        """Open a store that `polysem features` made. Also while it is being made: then it has what is committed."""
        store = cls(Path(folder), layout.read_manifest(Path(folder)))
        for path, values in zip(store._files, store._sizes, strict=True):
            size, expected = path.stat().st_size if path.exists() else 0, values * store.manifest.stored.itemsize
            if size < expected:
                cut = f"{path} has {size:,} bytes, its journal speaks of {expected:,}: it was cut or lost"
                raise layout.StoreError(f"{cut}. Copy it again, or extract into another folder.")
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers of a data loader get the folder, not open files.
        return FeatureStore.open, (self.folder,)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, key: object) -> bool:
        return key in self._positions

    def positions(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Where these ids stand. Ids without features are an error that says how many and why."""
        missing = [key for key in ids if key not in self._positions]
        if missing:
            reasons = {skip.what: skip.why for skip in self.skipped}
            why = reasons.get(missing[0], "not extracted yet: run `polysem features` again to go on")
            what = f"{len(missing)} of {len(ids)} items have no features in {self.folder}"
            raise layout.StoreError(f"{what}, e.g. {missing[0]!r} ({why}).")
        return np.fromiter((self._positions[key] for key in ids), np.int64, len(ids))

    def __getitem__(self, key: str) -> NDArray[Any]:
        row = int(self.positions([key])[0])
        start, length = int(self._start[row]), int(self.lengths[row])
        return self._map(int(self._shard[row]))[start : start + length * self.dim].reshape(length, self.dim)

    def summary(self, key: str) -> NDArray[Any]:
        """(summary_dim,) view of an item's global feature."""
        row = int(self.positions([key])[0])
        start = int(self._start[row] + self.lengths[row] * self.dim)
        return self._map(int(self._shard[row]))[start : start + self.summary_dim]

    def batch(self, positions: Sequence[int] | NDArray[np.integer[Any]], dtype: str = "float32") -> LocalFeatures:
        """Read the items at these positions of `ids`, padded with zeros. dtype: "float32", or that of the store."""
        import torch

        from polysem.features import LocalFeatures

        rows = np.asarray(positions, dtype=np.int64)
        if rows.ndim != 1 or not len(rows) or rows.min() < 0 or rows.max() >= len(self):
            raise InputError(f"Give positions from 0 to {len(self) - 1} in one list, got {rows!s:.80}.")
        if dtype not in ("float32", self.manifest.dtype):
            raise InputError(f"This store gives float32 or {self.manifest.dtype}, not {dtype!r}.")
        lengths = self.lengths[rows]
        values = np.empty((len(rows), int(lengths.max()), self.dim), self.manifest.stored)
        summary = np.empty((len(rows), self.summary_dim), self.manifest.stored)
        for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
            self._read_into(row, values[i, :length].reshape(-1), summary[i])
            values[i, length:] = 0
        native = self.manifest.stored.newbyteorder("=")
        tensors = [torch.from_numpy(array.astype(native, copy=False)) for array in (values, summary)]
        target = getattr(torch, dtype)
        padded = LocalFeatures.from_lengths(tensors[0].to(target), torch.from_numpy(lengths))
        return LocalFeatures(padded.values, padded.mask, tensors[1].to(target) if self.summary_dim else None)

    def verify(self) -> None:
        """Read every value once and compare the checksums; raise with the items that are damaged."""
        damaged: list[str] = []
        files: set[str] = set()
        size = self.manifest.stored.itemsize
        for path, record in layout.read_records(self.folder):
            if record.ids and _crc32(path, record.start * size, record.count_values(self.dim) * size) != record.crc32:
                damaged += record.ids
                files.add(path.name)
        if damaged:
            what = f"{len(damaged)} of {len(self)} items are damaged or lie beside damage, e.g. {damaged[:3]}, in"
            names = ", ".join(sorted(files))
            raise layout.StoreError(f"{what} {names}. Copy these files again, or extract into another folder.")

    def _read_into(self, row: int, values: NDArray[Any], summary: NDArray[Any]) -> None:
        """Copy an item's values. Read, not mapped: pages touched through a map count as this process's memory."""
        file, start = int(self._shard[row]), int(self._start[row])
        if not hasattr(os, "preadv"):  # Windows
            mapped = self._map(file)[start : start + values.size + summary.size]
            values[:], summary[:] = mapped[: values.size], mapped[values.size :]
            return
        if file not in self._descriptors:
            self._descriptors[file] = os.open(self._files[file], os.O_RDONLY)
        targets = [part.view(np.uint8).data for part in (values, summary) if part.size]
        expected = sum(target.nbytes for target in targets)
        if os.preadv(self._descriptors[file], targets, start * values.itemsize) != expected:
            raise layout.StoreError(f"{self._files[file]} became shorter while it was read. Open the store again.")

    def _map(self, file: int) -> NDArray[Any]:
        if file not in self._maps:
            path, shape = self._files[file], (self._sizes[file],)
            try:
                self._maps[file] = np.memmap(path, self.manifest.stored, "r", shape=shape).view(np.ndarray)
            except OSError as error:
                raise layout.os_failure("read", path, error) from None
        return self._maps[file]

    def __del__(self) -> None:
        for descriptor in getattr(self, "_descriptors", {}).values():
            os.close(descriptor)


def _crc32(path: Path, start: int, length: int) -> int:
    checksum = 0
    with path.open("rb") as file:
        file.seek(start)
        while length > 0 and (block := file.read(min(_BLOCK, length))):
            checksum, length = zlib.crc32(block, checksum), length - len(block)
    return checksum
