"""One segment made ready to be searched: exactly, and by its means, whatever of it is damaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import Engine, Plan, exact
from polysem.search.local.candidates import FEW, Means
from polysem.search.store import Damage, SearchError, View
from polysem.search.store.segments import Segment
from polysem.search.vector_checks import bounded, plain_scores

ENGINE, MEANS = "engine", "means"
"""Names of what is attached to a segment."""
SKETCHED = 4096
"""Rows from which sketches are made: fewer are scanned as fast."""


class Part:
    """A segment as the searching code sees it. What was attached to it is used, or else made for the time being."""

    def __init__(self, view: View, compared: Mapping[str, Any], broken: Iterable[range] = ()) -> None:
        """broken: rows that are known to be damaged."""
        self._view, self._compared = view, compared
        self.settled = not missing(view, compared)
        """Whether all that speeds a search up has been made: else it is worth looking again later."""
        self.broken = np.zeros(view.rows, np.bool_)
        """Rows that must not be searched, because what is stored is not what was written."""
        for rows in broken:
            self.broken[rows.start : rows.stop] = True
        if not self.settled or view.rows < SKETCHED:
            self.check()  # it will be read in full in any case

    @property
    def vectors(self) -> NDArray[Any]:
        return self._view.vectors

    def check(self) -> bool:
        """Compare all checksums of the vectors, and whether that has found something new."""
        before = int(self.broken.sum())
        for damage in self._view.segment.verify():
            self.broken[slice(None) if damage.rows is None else slice(damage.rows.start, damage.rows.stop)] = True
        new = int(self.broken.sum()) > before
        if new:
            for name in ("engine", "means", "_sound"):
                self.__dict__.pop(name, None)
        return new

    @cached_property
    def _sound(self) -> NDArray[Any]:
        """The vectors, with something harmless in place of what is damaged: nobody will see it, all of it is read."""
        if not self.broken.any():
            return self.vectors
        mended = self.vectors.copy()
        mended[self.broken] = 0
        mended[self.broken, :, 0] = 1
        return mended

    @cached_property
    def engine(self) -> Engine | None:
        """None where the similarity is not one that inner products bound: then every item is scored."""
        if bounded(self._compared) is None:
            return None
        found = attached(self._view, ENGINE, checked=True)
        if found is not None:
            return Engine.restore(self.vectors, found.about, found.arrays)
        return Engine.build(self._sound, self._compared, plan=Plan())

    @cached_property
    def means(self) -> Means:
        found = attached(self._view, MEANS, checked=True)
        return Means.build(self._sound) if found is None else Means.restore(found.arrays)

    def scores(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of one query (L, D) with these rows: the score that decides."""
        if self.engine is not None:
            return exact.scores(self.engine.full, query[None], self.engine.scoring, [rows])
        return plain_scores(self.vectors[rows], query, self._compared)


def missing(view: View, compared: Mapping[str, Any]) -> list[str]:
    """What should be attached to a segment and is not."""
    wanted = [ENGINE] if view.rows >= SKETCHED and bounded(compared) is not None else []
    wanted += [MEANS] if view.rows >= FEW else []
    return [name for name in wanted if attached(view, name) is None]


def attached(view: View, name: str, checked: bool = False) -> Segment | None:
    """What was attached to a segment; None if it is not there, or damaged. checked: read all of it to be sure."""
    try:
        found = view.attached(name)
    except SearchError:
        return None
    return None if found is None or (checked and found.verify()) else found


def is_attachment(damage: Damage) -> bool:
    """Whether it concerns what can be made again."""
    return any(damage.segment.endswith(f".{name}.seg") for name in (ENGINE, MEANS))
