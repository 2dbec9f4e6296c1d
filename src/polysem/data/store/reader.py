"""Reading features: views into the files for one item, padded copies for a batch, never the whole set."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polysem.data.collection import Skipped
from polysem.data.store import index, manifest
from polysem.data.store.errors import StoreError, failed
from polysem.data.store.manifest import Manifest
from polysem.errors import InputError

if TYPE_CHECKING:
    from polysem.features import LocalFeatures

_BLOCK = 2**24


class FeatureStore:
    """The features of a collection on disk, as they were committed when it was opened.

    `store[id]` is a read-only (n, D) view; `store.batch(positions)` a padded `LocalFeatures`. Positions count `ids`.
    """

    def __init__(self, folder: Path, features: Manifest, found: index.Index) -> None:
        self.folder, self.manifest, self._index = folder, features, found
        self._maps: dict[int, NDArray[Any]] = {}
        self._descriptors: dict[int, int] = {}

    @classmethod
    def open(cls, folder: str | Path) -> FeatureStore:
        """Open a store that `polysem features` made. Also while it is being made: then it has what is committed."""
        folder = Path(folder)
        features = manifest.load(folder)
        found = index.load(folder, features.dim)
        for path, values in zip(found.files, found.sizes, strict=True):
            size, expected = path.stat().st_size if path.exists() else 0, values * features.stored.itemsize
            if size < expected:
                raise StoreError(
                    f"{path} has {size:,} bytes, its journal speaks of {expected:,}: it was cut or lost after it was "
                    "written. Copy it again from where it was made, or extract into another folder."
                )
        return cls(folder, features, found)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers of a data loader get the folder, not open files.
        return FeatureStore.open, (self.folder,)

    def __len__(self) -> int:
        return len(self._index.ids)

    def __contains__(self, key: object) -> bool:
        return key in self._positions

    @property
    def ids(self) -> list[str]:
        """The ids of its items, rank by rank in the order of extraction."""
        return self._index.ids

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(len,) number of tokens of each item."""
        return self._index.lengths

    @property
    def dim(self) -> int:
        """Width of a token."""
        return self.manifest.dim

    @property
    def summary_dim(self) -> int:
        """Width of the global feature of each item, 0 if the encoder makes none."""
        return self._index.summary

    @property
    def fingerprint(self) -> str:
        """Of the encoder that made the features."""
        return self.manifest.fingerprint

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The items that have no features, and why."""
        return self._index.skipped

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(self._index.sizes) * self.manifest.stored.itemsize

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.ids)}

    def positions(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Where these ids stand. Ids without features are an error that says how many and why."""
        missing = [key for key in ids if key not in self._positions]
        if missing:
            reasons = {skip.what: skip.why for skip in self.skipped}
            why = reasons.get(missing[0], "not extracted yet: run `polysem features` again to go on")
            raise StoreError(
                f"{len(missing)} of {len(ids)} items have no features in {self.folder}, e.g. {missing[0]!r} ({why})."
            )
        return np.fromiter((self._positions[key] for key in ids), np.int64, len(ids))

    def __getitem__(self, key: str) -> NDArray[Any]:
        place = int(self.positions([key])[0])
        start, length = int(self._index.start[place]), int(self._index.lengths[place])
        values = self._map(int(self._index.file[place]))[start : start + length * self.dim]
        return values.reshape(length, self.dim)

    def summary(self, key: str) -> NDArray[Any]:
        """(summary_dim,) view of an item's global feature."""
        place = int(self.positions([key])[0])
        start = int(self._index.start[place]) + int(self._index.lengths[place]) * self.dim
        return self._map(int(self._index.file[place]))[start : start + self.summary_dim]

    def batch(self, positions: Sequence[int] | NDArray[np.integer[Any]], dtype: str = "float32") -> LocalFeatures:
        """The items at these positions, padded with zeros to the longest, as float32 or in the dtype of the store."""
        import torch

        from polysem.features import LocalFeatures

        places = np.asarray(positions, dtype=np.int64)
        if places.ndim != 1 or not len(places) or places.min() < 0 or places.max() >= len(self):
            raise InputError(f"Give positions from 0 to {len(self) - 1} in one list, got {places!s:.80}.")
        if dtype not in ("float32", self.manifest.dtype):
            raise InputError(f"This store gives float32 or {self.manifest.dtype}, not {dtype!r}.")
        lengths = self._index.lengths[places]
        values = np.empty((len(places), int(lengths.max()), self.dim), self.manifest.stored)
        summary = np.empty((len(places), self.summary_dim), self.manifest.stored)
        for row, (place, length) in enumerate(zip(places.tolist(), lengths.tolist(), strict=True)):
            self._read_into(place, values[row, :length].reshape(-1), summary[row])
            values[row, length:] = 0
        native = self.manifest.stored.newbyteorder("=")
        tensors = [torch.from_numpy(array.astype(native, copy=False)) for array in (values, summary)]
        wanted = getattr(torch, dtype)
        padded = LocalFeatures.from_lengths(tensors[0].to(wanted), torch.from_numpy(lengths))
        return LocalFeatures(padded.values, padded.mask, tensors[1].to(wanted) if self.summary_dim else None)

    def verify(self) -> None:
        """Read every value once and compare the checksums; raise with the items that are damaged."""
        damaged: list[str] = []
        files: set[Path] = set()
        size = self.manifest.stored.itemsize
        for chunk in self._index.chunks:
            path = self._index.files[chunk.file]
            if _crc32(path, chunk.start * size, chunk.values * size) != chunk.crc32:
                damaged += self.ids[chunk.first : chunk.last]
                files.add(path)
        if damaged:
            raise StoreError(
                f"{len(damaged)} of {len(self)} items are damaged or lie beside damage, e.g. {damaged[:3]}, in "
                f"{', '.join(sorted(path.name for path in files))}. Copy these files again from where they were made, "
                "or extract into another folder."
            )

    def _read_into(self, place: int, values: NDArray[Any], summary: NDArray[Any]) -> None:
        """Copy an item's values. Read, not mapped: pages touched through a map count as this process's memory."""
        file, start = int(self._index.file[place]), int(self._index.start[place])
        if not hasattr(os, "preadv"):  # Windows
            mapped = self._map(file)[start : start + values.size + summary.size]
            values[:], summary[:] = mapped[: values.size], mapped[values.size :]
            return
        if file not in self._descriptors:
            self._descriptors[file] = os.open(self._index.files[file], os.O_RDONLY)
        targets = [part.view(np.uint8).data for part in (values, summary) if part.size]
        expected = sum(target.nbytes for target in targets)
        if os.preadv(self._descriptors[file], targets, start * values.itemsize) != expected:
            raise StoreError(f"{self._index.files[file]} became shorter while it was read. Open the store again.")

    def _map(self, file: int) -> NDArray[Any]:
        if file not in self._maps:
            path, shape = self._index.files[file], (self._index.sizes[file],)
            try:
                self._maps[file] = np.memmap(path, self.manifest.stored, "r", shape=shape).view(np.ndarray)
            except OSError as error:
                raise failed("read", path, error) from None
        return self._maps[file]

    def __del__(self) -> None:
        for descriptor in getattr(self, "_descriptors", {}).values():
            os.close(descriptor)


def _crc32(path: Path, start: int, length: int) -> int:
    found = 0
    with path.open("rb") as file:
        file.seek(start)
        while length > 0 and (block := file.read(min(_BLOCK, length))):
            found, length = zlib.crc32(block, found), length - len(block)
    return found
