"""One query against one engine: bounds first, then the full score of whoever the bounds cannot rule out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import scan
from polysem.search.engine.queries import Queries
from polysem.search.engine.race import Race
from polysem.search.engine.scan_data import Level, Probe, Rows
from polysem.search.engine.scoring import Scoring

if TYPE_CHECKING:
    from polysem.search.engine.engine import Engine

# The most promising items scored to set the bar, beside twice the number asked for.
PROMISING = 32
# The share of items left by the first bounds above which more bounds are not worth their time.
MANY = 1 / 2
# The first of those left to be scored at once; then twice as many, and so on, while the bar rises.
_FIRST = 64


class Contest:
    """`open` sets the bar of a race, `close` brings in all who may reach it: every engine opens before any closes."""

    def __init__(self, place: int, engine: Engine, queries: Queries, number: int, rows: Rows = None) -> None:
        """place: the engine's number in the race; number: the query's among `queries`; rows: the items allowed."""
        self.place, self.engine, self.rows = place, engine, rows
        self._queries, self._number = queries, number
        self._bounds, self._sketch = np.empty(0, np.float32), 1

    @property
    def size(self) -> int:
        return len(self.engine.vectors) if self.rows is None else len(self.rows)

    def score_all(self, race: Race, scores: NDArray[np.float32] | None = None) -> None:
        """Without bounds; `scores` if they are known already."""
        rows = np.arange(self.size) if self.rows is None else self.rows
        self._add(
            race, rows, scan.one(self._full, self._probe(0), self._scoring, self.rows) if scores is None else scores
        )

    def open(self, race: Race, bounds: NDArray[np.float32] | None = None, sketch: int = 1) -> None:
        """Bound everyone by a sketch, counted from 1 (`bounds` if they are known already); score the most promising."""
        self._sketch = sketch
        first = self.engine.sketches[sketch - 1]
        self._bounds = scan.one(first, self._probe(sketch), self._scoring, self.rows) if bounds is None else bounds
        promising = scan.largest(self._bounds, PROMISING + 2 * race.k)
        self._score(race, self._rows(promising))
        self._bounds[promising] = np.nan  # reaches no bar, not even that of a race with fewer than k runners

    def close(self, race: Race) -> None:
        slack = self._slack(self._sketch)
        left = np.flatnonzero(race.reaches(self._bounds, slack))
        rows, bounds = self._rows(left), self._bounds[left]
        others = self.engine.sketches[self._sketch :] if len(left) <= MANY * self.size else ()
        for number, level in enumerate(others, start=self._sketch + 1):
            slack = self._slack(number)
            bounds = scan.one(level, self._probe(number), self._scoring, rows)
            reaching = race.reaches(bounds, slack)
            rows, bounds = rows[reaching], bounds[reaching]
        order = np.argsort(-bounds)
        rows, bounds, step = rows[order], bounds[order], _FIRST
        while race.reaches(bounds[:1], slack).any():
            self._score(race, rows[:step])
            rows, bounds, step = rows[step:], bounds[step:], 2 * step

    @property
    def _full(self) -> Level:
        return self.engine.full

    @property
    def _scoring(self) -> Scoring:
        return self.engine.scoring

    def _score(self, race: Race, rows: NDArray[np.int64]) -> None:
        self._add(race, rows, scan.one(self._full, self._probe(0), self._scoring, rows))

    def _add(self, race: Race, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        race.add(self.place, rows, scores, self._slack(0))

    def _rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return places if self.rows is None else self.rows[places]

    def _probe(self, level: int) -> Probe:
        return self._queries.probes[level].one(self._number)

    def _slack(self, level: int) -> float:
        return self._queries.slack(self.engine, level)
