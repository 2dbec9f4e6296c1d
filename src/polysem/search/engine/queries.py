from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polysem.search.engine import scan
from polysem.search.engine.scan_data import Level, Probe
from polysem.search.engine.sketch import probes

if TYPE_CHECKING:
    from polysem.search.engine.engine import Engine


@dataclass(frozen=True)
class Queries:
    """Queries in the form of every level of an engine."""

    vectors: NDArray[np.float32]
    """(Q, L, D), norms within `uneven` of 1."""
    uneven: float
    probes: Sequence[Probe]
    """For the vectors themselves, then for each sketch."""

    @classmethod
    def prepare(
        cls,
        vectors: NDArray[np.float32],
        uneven: float,
        sketches: Sequence[Level],
        rotation: NDArray[np.float64],
        longest: float,
    ) -> Queries:
        sketched = probes(vectors, rotation, [level.width for level in sketches], longest) if sketches else []
        return cls(vectors, uneven, [Probe(vectors), *sketched])

    def slack(self, engine: Engine, number: int, *, many: bool = False) -> float:
        """How far scores (number 0) or the bounds of a sketch, counted from 1, may be off; `many`: from `scan.many`."""
        K, L = engine.vectors.shape[1], self.vectors.shape[1]
        level = engine.sketches[number - 1] if number else engine.full
        uneven, fixed = max(self.uneven, engine.uneven), scan.fixed_sides(level, many=many)
        return engine.scoring.slack(K, L, level.width, uneven, scan.rounding(), fixed)

    def rounding(self, engine: Engine) -> float:
        """How far scores from exact products may be off when those are rounded to float32."""
        uneven = max(self.uneven, engine.uneven)
        return engine.scoring.slack(engine.vectors.shape[1], self.vectors.shape[1], 0, uneven)
