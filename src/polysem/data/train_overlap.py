"""How much of a collection a model was trained on, estimated from a bottom-k sketch that the model carries.

Items are known by a hash of id and captions. A model keeps the smallest of its training items' hashes; of other items,
those with a hash no larger than these were trained on exactly if theirs is among them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from polysem.data.collection import Collection, Item

SKETCH_SIZE = 512


def build_sketch(collection: Collection) -> list[str]:
    """The smallest hashes of its items, ascending."""
    return sorted(_hash(item) for item in collection)[:SKETCH_SIZE]


def merge_sketches(*sketches: Sequence[str]) -> list[str]:
    """The sketch of all items that are in any of them."""
    return sorted({each for known in sketches for each in known})[:SKETCH_SIZE]


def estimate_overlap(known: Sequence[str], collection: Collection) -> float:
    """The estimated share of a collection that is among the items that `known` is the sketch of."""
    if not known:
        return 0.0
    # A sketch that is not full holds every item there was.
    hashes = [_hash(item) for item in collection]
    judged = hashes if len(known) < SKETCH_SIZE else [each for each in hashes if each <= known[-1]]
    members = set(known)
    return sum(each in members for each in judged) / max(1, len(judged))


def _hash(item: Item) -> str:
    return hashlib.sha256("\0".join([item.id, *item.captions]).encode()).hexdigest()[:12]
