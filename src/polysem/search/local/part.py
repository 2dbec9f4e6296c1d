"""One segment made ready to be searched: exactly, and by its means."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import Engine, Plan, exact
from polysem.search.local.means import FEW, Means
from polysem.search.sets import bounded, plain_scores
from polysem.search.store import SearchError, View

ENGINE, MEANS = "engine", "means"
"""Names of what is attached to a segment."""
SKETCHED = 4096
"""Rows from which sketches are made: fewer are scanned as fast."""


class Part:
    """A segment as the searching code sees it. What was attached to it is used, or else made for the time being."""

    def __init__(self, view: View, compared: Mapping[str, Any]) -> None:
        self._view, self._compared = view, compared
        self.vectors = view.vectors
        self.settled = not missing(view, compared)
        """Whether all that speeds a search up has been made: else it is worth looking again later."""

    @cached_property
    def engine(self) -> Engine | None:
        """None where the similarity is not one that inner products bound: then every item is scored."""
        if bounded(self._compared) is None:
            return None
        if found := _attached(self._view, ENGINE):
            about, arrays = found
            return Engine.restore(self.vectors, about, arrays)
        return Engine.build(self.vectors, self._compared, plan=Plan())

    @cached_property
    def means(self) -> Means:
        found = _attached(self._view, MEANS)
        return Means.build(self.vectors) if found is None else Means.restore(found[1])

    def scores(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of one query (L, D) with these rows: the score that decides."""
        if self.engine is not None:
            return exact.scores(self.engine.full, query[None], self.engine.scoring, [rows])
        return plain_scores(self.vectors[rows], query, self._compared)


def missing(view: View, compared: Mapping[str, Any]) -> list[str]:
    """What should be attached to a segment and is not, or is damaged."""
    wanted = [ENGINE] if view.rows >= SKETCHED and bounded(compared) is not None else []
    wanted += [MEANS] if view.rows >= FEW else []
    return [name for name in wanted if _attached(view, name) is None]


def _attached(view: View, name: str) -> tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]] | None:
    try:
        found = view.attached(name)
    except SearchError:  # damaged: it is made again by the next writer
        return None
    return None if found is None else (found.about, found.arrays)
