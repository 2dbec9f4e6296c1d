"""Whether a sample of scores falls into two bumps, and where the valley between them is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

APART, SMALLEST = 3.5, 0.05
"""How far the bumps must be apart (Ashman's D; 2 is where two of equal width begin to show), and the least share."""
_STARTS, _ROUNDS, _POINTS = (0.1, 0.35), 60, 256


def valley(sample: Floats) -> float | None:
    """The score at which both bumps of a mixture of two normals are equally likely, if it has two that are clear.

    (n,) in any order; the mixture is fitted by expectation and maximisation from fixed starts.
    """
    if len(sample) > _POINTS:  # evenly spaced quantiles say as much, in the same time for any sample
        sample = np.quantile(sample, (np.arange(_POINTS) + 0.5) / _POINTS)
    spread = float(sample.var())
    if spread == 0:
        return None
    fits = [_fit(sample, share, 1e-4 * spread) for share in _STARTS]
    _, share, mean, variance = max(fits, key=lambda fit: fit[0])
    apart = (mean[1] - mean[0]) * np.sqrt(2 / variance.sum())
    if apart < APART or not SMALLEST <= share[1] <= 1 - SMALLEST:
        return None
    between = np.linspace(mean[0], mean[1], 257)
    logs = _logs(between, share, mean, variance)
    return float(between[np.argmax(logs[1] >= logs[0])])


def _fit(sample: Floats, upper: float, floor: float) -> tuple[float, Floats, Floats, Floats]:
    """Log likelihood, shares, means and variances of the lower and the upper bump."""
    belongs = (sample >= np.quantile(sample, 1 - upper)).astype(np.float64)
    belongs = np.stack([1 - belongs, belongs])
    for _ in range(_ROUNDS):
        weight = belongs.sum(1) + 1e-9
        share, mean = weight / weight.sum(), belongs @ sample / weight
        # The floor keeps a bump from shrinking onto a few equal scores.
        variance = (belongs * (sample - mean[:, None]) ** 2).sum(1) / weight + floor
        logs = _logs(sample, share, mean, variance)
        total = np.logaddexp(logs[0], logs[1])
        belongs = np.exp(logs - total)
    return float(total.sum()), share, mean, variance


def _logs(x: Floats, share: Floats, mean: Floats, variance: Floats) -> Floats:
    """(2, n) log density of each bump times its share, up to a constant."""
    found: Floats = np.log(share / np.sqrt(variance))[:, None] - (x - mean[:, None]) ** 2 / (2 * variance)[:, None]
    return found
