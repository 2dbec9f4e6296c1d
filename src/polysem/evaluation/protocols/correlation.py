"""Do scores rise where people's judgements rise? Spearman's correlation, and CxC's bootstrap of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polysem.evaluation.relevance import Ints

Values = npt.NDArray[np.float64]
SAMPLES = 1000


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Pearson's correlation of the ranks; equal values share their mean rank. NaN if either does not vary."""
    first, second = (ranks - ranks.mean() for ranks in (_ranks(a), _ranks(b)))
    scale = np.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / scale) if scale > 0 else float("nan")


def bootstrap(queries: Ints, judged: Values, scores: Values, samples: int = SAMPLES, seed: int = 0) -> Values:
    """(samples,) correlations, each over a random half of the queries with one random pair of each.

    Pairs that share a query depend on each other; a sample has none of those. Parekh et al., Crisscrossed Captions
    (EACL 2021), give the mean and the standard deviation over 1,000 samples.
    """
    order = np.argsort(queries, kind="stable")
    _, starts, counts = np.unique(queries[order], return_index=True, return_counts=True)
    generator = np.random.default_rng(seed)
    half = (len(starts) + 1) // 2
    found = []
    for _ in range(samples):
        chosen = generator.permutation(len(starts))[:half]
        pairs = order[starts[chosen] + generator.integers(counts[chosen])]
        found.append(spearman(judged[pairs], scores[pairs]))
    return np.array(found)


def _ranks(values: npt.ArrayLike) -> Values:
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)
