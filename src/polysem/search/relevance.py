"""Where the relevant results of a query end, told from the query's own scores.

No score means "relevant" for every query: each has its own bulk of unrelated items, at its own height and width. So
scores are read in the width of that bulk, z = (score - median) / (1.4826 · MAD) of a sample of the collection.

    noise = Φ⁻¹(1 - N^-EXPONENT)             how high unrelated items reach in a collection of N
    cut   = noise + RISE · (z of the best - noise)

A best result that does not rise above the noise leaves nothing. Where the sample falls into two clearly separate bumps,
as when a third of the collection is relevant, the valley between them is the cut if it lies lower.
`docs/benchmarks/search.md` has what the constants and the alternatives (gaps, knees, Otsu, E-values, false discovery
rates) measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polysem.errors import InputError, NonFiniteError, kind
from polysem.search.bumps import valley

EXPONENT, RISE = 0.5, 0.6
FEWEST, FEW = 5, 30
"""Fewer items than the first are not cut at all; fewer than the second are cut, and the cut is called unreliable."""
DOUBT = 0.5
"""More unrelated items than this at the height of the best result, and perhaps nothing is relevant."""

Floats = NDArray[np.float64]
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Cut:
    """How many of the results are relevant, and how far to believe it."""

    count: int
    """The first `count` results are relevant. Equal scores are never parted."""
    threshold: float | None
    """The score from which on a result is relevant; None where there is none: nothing stands out, or too few items."""
    complete: bool
    """False: every result given is relevant and the collection holds more items, so that more may follow."""
    by_chance: float | None
    """How many unrelated items one expects to reach the best score, were the bulk normal. Real bulks reach higher: read
    it beside those of other queries. None where there are too few items."""
    reliable: bool
    """False where there are too few items to tell how unrelated ones score."""

    @property
    def doubtful(self) -> bool:
        """Whether perhaps nothing is relevant, not even the best: unrelated items reach as high by themselves."""
        return self.by_chance is not None and self.by_chance > DOUBT

    def explained(self) -> str:
        """One clause for people."""
        if self.by_chance is None:
            return "too few items to tell which are relevant: none left out"
        if self.threshold is None:
            return "none stands out from the rest of the collection"
        found = f"{self.count} relevant, from a score of {self.threshold:.3f} on"
        found += "" if self.complete else ", and more may follow"
        found += ", though few items make it a guess" if not self.reliable else ""
        return found + (", or perhaps none: unrelated items score as high" if self.doubtful else "")


def relevant(scores: ArrayLike, background: ArrayLike, collection_size: int) -> Cut:
    """Which of the best results are relevant.

    scores: (k,) of the results, best first. background: (n,) scores of a random sample of the whole collection (or of
    all of it) with the same query, relevant ones among them as they come; a thousand are plenty. collection_size: how
    many items were searched; with a filter, those that pass it. It is never taken as fewer than the scores given.
    A query that is itself an item of the collection is left out of the results: its perfect score would hide the rest.
    """
    found, sample = _checked(scores, "scores"), _checked(background, "background")
    if np.any(np.diff(found) > 0):
        raise InputError("relevant() takes the scores of results with the best first; these rise somewhere. Sort them.")
    size = max(int(collection_size), len(found), len(sample))
    if len(sample) < FEWEST:
        return Cut(len(found), None, len(found) == size, None, reliable=False)
    reliable = len(sample) >= FEW
    centre, width = _bulk(sample)
    if not len(found) or not found[0] - centre > 1e-9 * max(1.0, abs(centre)):  # all alike, up to rounding
        return Cut(0, None, True, float(size), reliable)
    if width == 0:  # all alike but for the best, which the sample has missed
        return _cut(found, (centre + float(found[0])) / 2, size, 0.0, reliable)
    best = (float(found[0]) - centre) / width
    noise = _NORMAL.inv_cdf(1 - size**-EXPONENT)
    threshold = math.inf if best <= noise else centre + width * (noise + RISE * (best - noise))
    between = valley(sample) if reliable else None
    if between is not None and between < found[0]:
        threshold = min(threshold, between)
    return _cut(found, threshold, size, size * math.erfc(best / math.sqrt(2)) / 2, reliable)


def _cut(scores: Floats, threshold: float, size: int, by_chance: float, reliable: bool) -> Cut:
    count = int(np.count_nonzero(scores >= threshold))
    complete = count < len(scores) or len(scores) == size
    return Cut(count, threshold if math.isfinite(threshold) else None, complete, by_chance, reliable)


def _bulk(sample: Floats) -> tuple[float, float]:
    """Median, and the deviation that a normal bulk of this MAD has; of the mean deviation if over half are alike."""
    centre = float(np.median(sample))
    away = np.abs(sample - centre)
    return centre, 1.4826 * float(np.median(away)) or math.sqrt(math.pi / 2) * float(away.mean())


def _checked(values: ArrayLike, name: str) -> Floats:
    given: NDArray[Any] = np.asarray(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iuf"):
        raise InputError(f"relevant() takes {name} as a one-dimensional array of numbers, got {kind(given)}.")
    floats = given.astype(np.float64)
    if not np.isfinite(floats).all():
        raise NonFiniteError(
            f"{np.count_nonzero(~np.isfinite(floats))} of {len(floats)} {name} are NaN or infinite: the embeddings "
            "they come from are damaged. Encode the items again."
        )
    return floats
