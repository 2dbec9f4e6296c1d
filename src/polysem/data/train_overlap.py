"""Whether items were trained on: told from a few hundred numbers that a model carries, whatever its data is called now.

Items are known by a hash of id and captions. A model keeps the smallest of its training items' hashes; of other items,
those with a hash no larger than these were trained on exactly if theirs is among them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from polysem.data.collection import Collection, Item

KEPT = 512


def sketch(collection: Collection) -> list[str]:
    """The smallest hashes of its items, ascending."""
    return sorted(_hash(item) for item in collection)[:KEPT]


def together(*sketches: Sequence[str]) -> list[str]:
    """The sketch of all items that are in any of them."""
    return sorted({each for known in sketches for each in known})[:KEPT]


def share(known: Sequence[str], collection: Collection) -> float:
    """About how much of the collection is among the items that `known` is the sketch of."""
    if not known:
        return 0.0
    # A sketch that is not full holds every item there was.
    found = [_hash(item) for item in collection]
    judged = found if len(known) < KEPT else [each for each in found if each <= known[-1]]
    members = set(known)
    return sum(each in members for each in judged) / max(1, len(judged))


def _hash(item: Item) -> str:
    return hashlib.sha256("\0".join([item.id, *item.captions]).encode()).hexdigest()[:12]
