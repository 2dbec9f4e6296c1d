"""The recalls of a score matrix at hand, which is what training watches."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from polysem.evaluation.metrics import CUTS, per_query, rsum
from polysem.evaluation.ranking import BothWays, rank_both_ways
from polysem.evaluation.score_matrix import Matrix


def retrieval(scores: Tensor, owners: npt.NDArray[np.integer[Any]]) -> dict[str, Any]:
    """Recalls both ways and their sum. scores: (I, T); owners: (T,) the image of each text. A query without a right
    answer is left out. A run that has diverged is still watched: where a score is NaN, nothing is found."""
    values, owners = scores.numpy(), np.asarray(owners)
    if np.isnan(values).any():
        own = np.arange(values.shape[0])[:, None] == owners
        values = np.where(np.isnan(values), np.where(own, -np.inf, np.inf), values)
    found = cast(BothWays, rank_both_ways(Matrix(values), owners)[0])
    ways = {}
    for way, ranking in (("i2t", found.i2t), ("t2i", found.t2i)):
        hits = per_query(ranking)
        ways[way] = {f"r{cut}": float(hits[f"r{cut}"].mean()) for cut in CUTS}
    return {"rsum": rsum(ways["i2t"], ways["t2i"]), **ways}
