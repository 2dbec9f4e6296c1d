"""Where each item's values lie: the journals of all ranks as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.data.collection import Skipped
from polysem.data.store import journal
from polysem.data.store.errors import StoreError


@dataclass(frozen=True)
class Chunk:
    """The values of one batch: what a checksum covers. Its items are `first` to `last` (exclusive) of the index."""

    file: int
    start: int
    values: int
    crc32: int
    first: int
    last: int


@dataclass(frozen=True)
class Index:
    """Every committed item of a store, rank by rank in the order of writing.

    file, start, lengths: of each item, which of `files` it lies in, its first value there, its number of tokens.
    sizes: committed values of each file. summary: width of the global features, 0 without.
    """

    ids: list[str]
    file: NDArray[np.int32]
    start: NDArray[np.int64]
    lengths: NDArray[np.int64]
    files: list[Path]
    sizes: list[int]
    chunks: list[Chunk]
    skipped: tuple[Skipped, ...]
    summary: int


def load(folder: Path, dim: int) -> Index:
    """Read the journals of every rank."""
    ids: list[str] = []
    skipped: dict[str, str] = {}
    files: dict[Path, int] = {}
    sizes: list[int] = []
    chunks: list[Chunk] = []
    summaries: set[int] = set()
    columns: dict[str, list[NDArray[Any]]] = {"file": [], "start": [], "lengths": []}
    for rank in journal.ranks(folder):
        for record, _ in journal.read(journal.path_of(folder, rank)):
            skipped.update(record.skipped)
            if not record.ids:
                continue
            summaries.add(record.summary)
            file = files.setdefault(journal.shard_path(folder, rank, record.shard), len(files))
            lengths = np.asarray(record.lengths, dtype=np.int64)
            values = lengths * dim + record.summary
            columns["file"].append(np.full(len(lengths), file, dtype=np.int32))
            columns["start"].append(record.start + np.cumsum(values) - values)
            columns["lengths"].append(lengths)
            count = record.values(dim)
            chunks.append(Chunk(file, record.start, count, record.crc32, len(ids), len(ids) + len(lengths)))
            ids.extend(record.ids)
            # Records of a shard come in order, so the last one says how far it reaches.
            del sizes[file:]
            sizes.append(record.start + count)
    if len(summaries) > 1:
        raise StoreError(f"{folder} mixes global features of widths {sorted(summaries)}. Extract into another folder.")
    held = set(ids)
    return Index(
        ids=ids,
        file=np.concatenate(columns["file"] or [np.empty(0, np.int32)]),
        start=np.concatenate(columns["start"] or [np.empty(0, np.int64)]),
        lengths=np.concatenate(columns["lengths"] or [np.empty(0, np.int64)]),
        files=list(files),
        sizes=sizes,
        chunks=chunks,
        # An item that was skipped once and extracted on a later try is no longer missing.
        skipped=tuple(Skipped(key, why) for key, why in skipped.items() if key not in held),
        summary=max(summaries, default=0),
    )
