"""Small indexes for the tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from polysem.search.store import Entry, Manifest, Side, VectorBatch

DIM = 6
SETS = {"image": 3, "text": 2}


def manifest(**changes: Any) -> Manifest:
    return Manifest(**{"fingerprint": "abc", "sets": SETS, "dim": DIM, "similarity": {"name": "chamfer"}, **changes})


def sets(values: Iterable[float], side: Side = "image") -> np.ndarray:
    """(n, K, D): each item's set tells its value."""
    given = np.asarray(list(values), np.float32)
    return np.broadcast_to(given[:, None, None], (len(given), SETS[side], DIM)) + np.float32(1)


def batch(items: dict[str, float], side: Side = "image", **fields: Any) -> VectorBatch:
    return VectorBatch(side, [Entry(key, **fields) for key in items], sets(items.values(), side))
