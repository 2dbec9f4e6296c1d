"""Where the right answers stand, and the recalls that follow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BLOCK = 1 << 24
"""Comparisons held at once."""


def ranks(scores: Tensor, positives: Tensor) -> Tensor:
    """(Q, G) scores, (Q, G) bool -> (Q,) rank of each query's best positive, from 0. Ties count against it."""
    found = []
    rows = max(1, _BLOCK // scores.shape[1])
    for part, right in zip(scores.split(rows), positives.split(rows), strict=True):
        best = part.masked_fill(~right, float("-inf")).amax(1, keepdim=True)
        found.append((~(part < best) & ~right).sum(1))  # NaN beats nobody, and everybody beats it
    return torch.cat(found)


def recalls(found: Tensor) -> dict[str, float]:
    """Share of queries, in per cent, whose best positive is among the first 1, 5 and 10."""
    return {f"r{k}": 100.0 * float((found < k).double().mean()) for k in (1, 5, 10)}


def retrieval(scores: Tensor, owners: Tensor) -> dict[str, Any]:
    """Recalls both ways and their sum. scores: (I, T); owners: (T,) the image of each text. A query without a right
    answer is left out."""
    positives = owners[None] == torch.arange(len(scores))[:, None]
    asked = positives.any(1)
    i2t = recalls(ranks(scores[asked], positives[asked]))
    t2i = recalls(ranks(scores.t(), positives.t()))
    return {"rsum": sum(i2t.values()) + sum(t2i.values()), "i2t": i2t, "t2i": t2i}
