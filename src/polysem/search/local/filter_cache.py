"""Which rows of each segment pass a filter, kept from one moment of an index to the next.

The item of a row never changes, it only dies. So after a change only what is new has to be asked for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from polysem.search.filters import Filter
from polysem.search.store import Side, Snapshot

KEPT = 16
"""Filters whose answers are kept."""


class Passing:
    """The answers of one side. Packed: a bit for each row."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._found: OrderedDict[str, dict[int, NDArray[np.uint8]]] = OrderedDict()

    def mask(self, snapshot: Snapshot, side: Side, where: Filter) -> NDArray[np.bool_]:
        """(rows,) of a snapshot that is held: whether each passes. Dead rows may do so too."""
        views, key = snapshot.views(side), repr(where)  # 1 and true are equal, and mean different things
        with self._guard:
            known = dict(self._found.get(key, {}))
        new = {view.number for view in views} - known.keys()
        if new:
            known |= {number: np.packbits(rows) for number, rows in snapshot.passing(side, where, new).items()}
        with self._guard:
            self._found[key] = {view.number: known[view.number] for view in views}
            self._found.move_to_end(key)
            while len(self._found) > KEPT:
                self._found.popitem(last=False)
        passing = [np.unpackbits(known[view.number], count=view.rows).view(np.bool_) for view in views]
        return np.concatenate(passing or [np.empty(0, np.bool_)])
