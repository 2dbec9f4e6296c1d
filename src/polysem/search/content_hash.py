"""What has changed of an item since it was added: its content, or only where it lies and what is said of it.

An item whose content is the same keeps its vectors: a folder that was moved is not encoded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polysem.search.store import Batch, Entry, Side

_CONTENT, _SAID = 40, 24
"""Digits of each part of a hash: 160 bits tell contents apart, 96 what was said of one of them."""


class Known(Protocol):
    """What is in the index: a `Backend`, of which this needs little."""

    def hashes(self, ids: Iterable[str], side: Side) -> dict[str, str | None]: ...

    def sound(self, side: Side, ids: Iterable[str]) -> dict[str, NDArray[Any]]: ...

    def frames(self, side: Side, ids: Sequence[str]) -> dict[str, NDArray[Any]]: ...


def hash_of(entry: Entry, content: bytes) -> str:
    """content: sha256 of what is encoded, empty where it cannot be read."""
    said = repr((entry.path, entry.caption, sorted(entry.metadata.items(), key=str), tuple(entry.labels)))
    digest = hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()
    return f"{content.hex()[:_CONTENT]}.{digest[:_SAID]}"


def same_content(one: str | None, other: str | None) -> bool:
    """Whether two hashes are of the same content."""
    content = (one or "").partition(".")[0]
    return len(content) == _CONTENT and content == (other or "").partition(".")[0]


def reused(side: Side, entries: Iterable[Entry], there: Mapping[str, str | None], known: Known, frames: bool) -> Batch:
    """Those of these entries whose content is in the index already, with the vectors it has there.

    there: hashes by id. frames: whether every item needs the frames it has there, too.
    """
    same = [entry for entry in entries if same_content(entry.hash, there.get(entry.id))]
    sets = known.sound(side, [entry.id for entry in same]) if same else {}
    own = known.frames(side, list(sets)) if frames else {}
    kept = [entry for entry in same if entry.id in sets and (not frames or entry.id in own)]
    vectors = np.array([sets[entry.id] for entry in kept])
    return Batch(side, kept, vectors, frames=[own[entry.id] for entry in kept] if frames else ())


def joined(one: Batch, other: Batch) -> Batch:
    """Two batches of one side as one: a segment is a file."""
    if not one.entries or not other.entries:
        return one if one.entries else other
    vectors = np.concatenate([one.vectors, other.vectors])
    return Batch(one.side, [*one.entries, *other.entries], vectors, frames=[*one.frames, *other.frames])
