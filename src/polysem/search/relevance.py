"""Where the relevant results of a query end, judged by the query's own score distribution.

No score means "relevant" for every query: each has its own bulk of unrelated items, at its own height and width. So
scores are read in the width of that bulk, z = (score - median) / (1.4826 · MAD) of a sample of the collection.

    noise = Φ⁻¹(1 - N^-EXPONENT)             how high unrelated items reach in a collection of N
    cut   = noise + RISE · (z of the best - noise)

A best result that does not rise above the noise leaves nothing. Where the sample is clearly a mixture of two normals,
as when a third of the collection is relevant, the valley between them is the cut if it lies lower.
`docs/benchmarks/search.md` has what the constants and the alternatives (gaps, knees, Otsu, E-values) measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polysem._deprecated import renamed_attribute
from polysem.errors import InputError, NonFiniteError, kind

EXPONENT, RISE = 0.5, 0.6
FEWEST, FEW = 5, 30
"""Fewer items than the first are not cut at all; fewer than the second are cut, and the cut is called unreliable."""
DOUBT = 0.5
"""More unrelated items than this at the height of the best result, and perhaps nothing is relevant."""

Floats = NDArray[np.float64]
_NORMAL = NormalDist()
_SEPARATION, _MIN_SHARE = 3.5, 0.05
"""How far apart the two components must be (Ashman's D; 2 is where two of equal width begin to show), and the least
share of one."""
_STARTS, _ROUNDS, _POINTS = (0.1, 0.35), 60, 256


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

    def explain(self) -> str:
        """One clause for people."""
        if self.by_chance is None:
            return "too few items to tell which are relevant: none left out"
        if self.threshold is None:
            return "none stands out from the rest of the collection"
        text = f"{self.count} relevant, from a score of {self.threshold:.3f} on"
        text += "" if self.complete else ", and more may follow"
        text += ", though few items make it a guess" if not self.reliable else ""
        return text + (", or perhaps none: unrelated items score as high" if self.doubtful else "")

    explained = renamed_attribute("explained", "explain")


def find_cut(scores: ArrayLike, background: ArrayLike, collection_size: int) -> Cut:
    """Cut a ranking after its relevant results.

    Leave a query that is itself an item out of the results: its perfect score would hide the rest.

    Args:
        scores: (k,) of the results, best first.
        background: (n,) scores of a random sample of the collection (or of all of it) with the same query, relevant
            ones among them as they come; a thousand are plenty.
        collection_size: how many items were searched; with a filter, those that pass it.

    Example:
        >>> import numpy as np
        >>> background = np.random.default_rng(0).normal(0.2, 0.02, 1000)
        >>> find_cut([0.8, 0.75, 0.3], background, collection_size=5000).count
        2
    """
    best_scores, sample = _validate(scores, "scores"), _validate(background, "background")
    if np.any(np.diff(best_scores) > 0):
        raise InputError("find_cut() takes the scores of results with the best first; these rise somewhere. Sort them.")
    size = max(int(collection_size), len(best_scores), len(sample))
    if len(sample) < FEWEST:
        return Cut(len(best_scores), None, len(best_scores) == size, None, reliable=False)
    reliable = len(sample) >= FEW
    centre = float(np.median(sample))
    away = np.abs(sample - centre)
    # The deviation that a normal bulk of this MAD has; of the mean deviation if over half are alike.
    width = 1.4826 * float(np.median(away)) or math.sqrt(math.pi / 2) * float(away.mean())
    if not len(best_scores) or not best_scores[0] - centre > 1e-9 * max(1.0, abs(centre)):  # all alike, up to rounding
        return Cut(0, None, True, float(size), reliable)
    if width == 0:  # all alike but for the best, which the sample has missed
        return _cut(best_scores, (centre + float(best_scores[0])) / 2, size, 0.0, reliable)
    best = (float(best_scores[0]) - centre) / width
    noise = _NORMAL.inv_cdf(1 - size**-EXPONENT)
    threshold = math.inf if best <= noise else centre + width * (noise + RISE * (best - noise))
    between = find_valley(sample) if reliable else None
    if between is not None and between < best_scores[0]:
        threshold = min(threshold, between)
    return _cut(best_scores, threshold, size, size * math.erfc(best / math.sqrt(2)) / 2, reliable)


def _cut(scores: Floats, threshold: float, size: int, by_chance: float, reliable: bool) -> Cut:
    count = int(np.count_nonzero(scores >= threshold))
    complete = count < len(scores) or len(scores) == size
    return Cut(count, threshold if math.isfinite(threshold) else None, complete, by_chance, reliable)


def _validate(values: ArrayLike, name: str) -> Floats:
    given: NDArray[Any] = np.asarray(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iuf"):
        raise InputError(f"find_cut() takes {name} as a one-dimensional array of numbers, got {kind(given)}.")
    floats = given.astype(np.float64)
    if not np.isfinite(floats).all():
        wrong = f"{np.count_nonzero(~np.isfinite(floats))} of {len(floats)} {name}"
        raise NonFiniteError(f"{wrong} are NaN or infinite: their embeddings are damaged. Encode the items again.")
    return floats


def find_valley(sample: Floats) -> float | None:
    """The score at which both components of a two-normal mixture are equally likely, if they are clearly separate.

    (n,) in any order; the mixture is fitted by expectation maximisation from fixed starts. scikit-learn's
    GaussianMixture from the same starts took 11 times as long (159 ms to 14 ms for a query, one busy core) and adds
    its floor to the variances in another place, so its means differ by up to 0.01 standard deviations.
    """
    if len(sample) > _POINTS:  # evenly spaced quantiles say as much, in the same time for any sample
        sample = np.quantile(sample, (np.arange(_POINTS) + 0.5) / _POINTS)
    spread = float(sample.var())
    if spread == 0:
        return None
    fits = [_fit_mixture(sample, share, 1e-4 * spread) for share in _STARTS]
    _, share, mean, variance = max(fits, key=lambda fit: fit[0])
    apart = (mean[1] - mean[0]) * np.sqrt(2 / variance.sum())
    if apart < _SEPARATION or not _MIN_SHARE <= share[1] <= 1 - _MIN_SHARE:
        return None
    between = np.linspace(mean[0], mean[1], 257)
    logs = _log_densities(between, share, mean, variance)
    return float(between[np.argmax(logs[1] >= logs[0])])


def _fit_mixture(sample: Floats, upper: float, floor: float) -> tuple[float, Floats, Floats, Floats]:
    """Log likelihood, weights, means and variances of the lower and the upper component."""
    belongs = (sample >= np.quantile(sample, 1 - upper)).astype(np.float64)
    belongs = np.stack([1 - belongs, belongs])
    for _ in range(_ROUNDS):
        weight = belongs.sum(1) + 1e-9
        share, mean = weight / weight.sum(), belongs @ sample / weight
        # The floor keeps a component from shrinking onto a few equal scores.
        variance = (belongs * (sample - mean[:, None]) ** 2).sum(1) / weight + floor
        logs = _log_densities(sample, share, mean, variance)
        total = np.logaddexp(logs[0], logs[1])
        belongs = np.exp(logs - total)
    return float(total.sum()), share, mean, variance


def _log_densities(x: Floats, share: Floats, mean: Floats, variance: Floats) -> Floats:
    """(2, n) log density of each component times its weight, up to a constant."""
    logs: Floats = np.log(share / np.sqrt(variance))[:, None] - (x - mean[:, None]) ** 2 / (2 * variance)[:, None]
    return logs
