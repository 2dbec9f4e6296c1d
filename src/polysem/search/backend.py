"""What `Index` needs of the place that stores it, a folder (`local`) or a Milvus server (`milvus`), and opening either.

A place is a folder, a folder that points to Milvus (`store.json`), or an address of Milvus.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from polysem.atomic_write import write_text
from polysem.errors import InputError
from polysem.progress import Progress
from polysem.search.filters import Filter
from polysem.search.store.entries import IndexedItem, Manifest, Side, VectorBatch
from polysem.search.store.errors import SearchError, explain_errors
from polysem.search.store.segments import Damage
from polysem.search.store.snapshot import Stats
from polysem.search.store.writer import AddCounts, CompactReport

Mode = Literal["exact", "fast"]
POINTER, SCHEME = "store.json", "milvus+"
CANDIDATES = 200
"""How many items the fast mode re-scores exactly, for each query."""


@dataclass(frozen=True)
class RankedItems:
    """A backend's answer: items best first with their scores in float64 and their sets (n, K, D).

    scored: how many items were scored exactly. unreadable: how many could not be, because their segment is damaged.
    """

    items: Sequence[IndexedItem]
    scores: NDArray[np.float64]
    sets: NDArray[Any]
    scored: int
    unreadable: int = 0


class IndexReader(Protocol):
    """The reading half of a backend.

    Scores are the model's similarity of the sets as stored, in float64; equal scores come in the order of adding.
    """

    manifest: Manifest
    modes: Sequence[Mode]
    """The search modes it offers, the default first."""

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        """The item hash (see `ingest.hash_entry`) of each of these ids that is indexed."""

    def paths(self, ids: Iterable[str], side: Side) -> dict[str, str | None]:
        """The path of each of these ids that is indexed."""

    def find(self, ids: Iterable[str], side: Side | None = None) -> list[IndexedItem]:
        """The items with these ids, in their order. Unknown ids are left out."""

    def caption_ids(self, ids: Iterable[str]) -> list[str]:
        """The ids of the texts that were added as captions of the images with these ids (`metadata.item`)."""

    def vectors(self, side: Side, ids: Sequence[str]) -> NDArray[Any]:
        """(n, K, D) sets of these ids, all of which must be indexed."""

    def intact_vectors(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]:
        """(K, D) of those of these ids that are indexed and whose checksum is right."""

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
        """(frames, K, D) of those of these ids that are videos."""

    def has_items(self, side: Side) -> bool:
        """Whether there are items of a side, readable or not."""

    def count(self, side: Side, where: Filter | None = None) -> int:
        """How many items of a side there are and, with `where`, pass the filter."""

    def search(
        self,
        side: Side,
        query: NDArray[Any],
        k: int,
        *,
        where: Filter | None = None,
        mode: Mode | None = None,
        candidates: int = CANDIDATES,
    ) -> RankedItems:
        """The k best items of a side for a query set (L, D). candidates: re-scored exactly by the fast mode."""

    def search_batch(
        self, side: Side, queries: NDArray[Any], k: int, *, where: Filter | None = None
    ) -> list[RankedItems]:
        """`search` in exact mode for query sets (Q, L, D): the same items and scores, bit for bit."""

    def search_words(self, side: Side, text: str, k: int, *, where: Filter | None = None) -> list[IndexedItem]:
        """The k best items of a side by the words of their id and caption (full text, BM25)."""

    def sample(self, side: Side, count: int, *, where: Filter | None = None, seed: int = 0) -> list[str]:
        """Ids of up to `count` random items of a side that pass the filter; the same for the same seed."""

    def matching_ids(self, side: Side, where: Filter) -> list[str]:
        """The ids of all items of a side that pass the filter, even if their vectors cannot be read."""

    def sample_scores(
        self, side: Side, query: NDArray[Any], count: int, *, where: Filter | None = None, seed: int = 0
    ) -> NDArray[np.float64]:
        """Scores of a query set (L, D) with the items that `sample` draws: the background of a relevance cut."""

    def read_value(self, name: str) -> Any:
        """The JSON value stored under this name beside the index; None if there is none."""

    def stats(self) -> Stats:
        """How many items, and how large."""

    def damaged_ids(self, damage: Damage) -> list[str]:
        """The ids of the items that a damage concerns."""


class Backend(IndexReader, Protocol):
    """One index: every reading method sees the newest commit; `snapshot` pins one for several calls.

    Writing methods raise `SearchError` where the index was opened for reading.
    """

    writable: bool
    keeps_frames: bool
    """Whether it stores the frames of videos; where not, batches need not bring them, and results have no moment."""

    def snapshot(self) -> AbstractContextManager[IndexReader]:
        """A reader pinned to one commit for the block, so that several calls agree. Milvus has no snapshots: there
        it is the live collection."""

    def add(self, *batches: VectorBatch) -> AddCounts:
        """Add items; an id that exists on the same side is replaced.

        A folder adds all of them or none; Milvus whole items, and of an interrupted call perhaps only the first ones.
        """

    def remove(self, ids: Iterable[str], side: Side | None = None, *, texts: Iterable[str] = ()) -> int:
        """Remove the items with these ids, on one side or both, and these texts, in one step; how many there were."""

    def optimize(self, progress: Progress | None = None) -> None:
        """After adding: build the sketches and the candidate index that make searching fast."""

    def write_value(self, name: str, value: Any) -> None:
        """Store a JSON value beside the index."""

    def verify(self, progress: Progress | None = None) -> list[Damage]:
        """Check all checksums; what is damaged."""

    def repair(self, damage: Sequence[Damage]) -> list[Damage]:
        """Rebuild what is damaged and derived, where this may write; the damage that is left."""

    def compact(self) -> CompactReport:
        """Give back the space of removed items."""

    def close(self) -> None:
        """Release files and connections. Safe to call twice."""


def create_backend(place: str | Path, manifest: Manifest, store: str | None = None) -> Backend:
    """Create an index. store: keep it at this address instead of in the folder, which then points there."""
    folder = Path(place)
    if store is None and not str(place).startswith(SCHEME):
        from polysem.search.local import LocalBackend

        with explain_errors("create", folder):
            points = (folder / POINTER).exists()
        if points:
            raise SearchError(f"{place} points to an index already. Choose another folder, or delete {POINTER} in it.")
        return LocalBackend.create(place, manifest)
    address = _check_address(store or str(place))
    from polysem.search.milvus import MilvusBackend

    if store is not None and ((folder / POINTER).exists() or any(folder.glob("index.sqlite*"))):
        raise SearchError(f"{folder} holds an index already. Choose another folder, or delete it first.")
    backend = MilvusBackend.create(address, manifest)
    if store is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / POINTER, json.dumps({"store": backend.address}, indent=2) + "\n")
        except OSError as error:
            backend.close()
            why = f"{folder / POINTER} cannot be written ({error.strerror or error})"
            raise SearchError(f"The index was made at {backend.address}, but {why}. Use the address instead.") from None
    return backend


def open_backend(place: str | Path, write: bool = False) -> Backend:
    """Open an index, wherever it is."""
    address = _read_address(place)
    if address is None:
        from polysem.search.local import LocalBackend

        return LocalBackend.open(place, write)
    from polysem.search.milvus import MilvusBackend

    return MilvusBackend.open(_check_address(address), write=write)


def points_to(place: str | Path, store: str) -> bool:
    """Whether a folder points to the index at this address."""
    address = _read_address(place)
    if address is None:
        return False
    from polysem.search.milvus import Address

    return Address.parse(address).url == Address.parse(_check_address(store)).url


def _read_address(place: str | Path) -> str | None:
    """Where the index is, None if it is in the folder itself."""
    if str(place).startswith(SCHEME):
        return str(place)
    pointer = Path(place) / POINTER
    with explain_errors("open", Path(place)):  # a folder that may not be looked into
        if not pointer.is_file():
            return None
    try:
        return str(json.loads(pointer.read_text(encoding="utf-8"))["store"])
    except (OSError, ValueError, KeyError, TypeError):
        raise SearchError(f'{pointer} does not say where the index is. Write {{"store": ADDRESS}}.') from None


def _check_address(address: str) -> str:
    if not address.startswith(SCHEME):
        raise InputError(f"A store is an address such as milvus+http://localhost:19530/photos, got {address!r}.")
    return address
