"""How the joint space is filled: matches close, the rest apart, no gap between the sides and no hubs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polysem import masked_ops
from polysem.evaluation import metrics
from polysem.evaluation.top_k import TopK

SOME = 4000
"""Vectors at most that all pairs are taken of."""
_BINS = 20


@dataclass(frozen=True)
class Space:
    """After Wang and Isola (2020) and Liang et al. (2022), of the mean vectors of sets, of length 1.

    alignment: mean squared distance of matching pairs, 0 at best. uniformity: ln mean exp(-2 d²) over pairs of one
    side, the lower the better spread. cosine: mean cosine of two different items of one side; near 1, all are at one
    point. gap: distance between the centres of images and texts. separable: how often a text lies further along the
    line between the centres than an image, 0.5 where the sides mingle and 1 where they are apart.
    """

    alignment: float
    uniformity_image: float
    uniformity_text: float
    cosine_image: float
    cosine_text: float
    gap: float
    separable: float


def space(images: Tensor, texts: Tensor, owners: npt.NDArray[np.integer]) -> Space:
    a, b = (masked_ops.unit(masked_ops.unit(side.float()).mean(1)) for side in (images, texts))
    own = a[torch.as_tensor(owners, dtype=torch.long)]
    between = b.mean(0) - a.mean(0)
    sides = [_some(side) @ between for side in (a, b)]
    (uniform_a, cosine_a), (uniform_b, cosine_b) = _all_pairs(a), _all_pairs(b)
    alignment = float((own - b).square().sum(-1).mean())
    gap, separable = float(between.norm()), auroc(sides[1], sides[0])
    return Space(alignment, uniform_a, uniform_b, cosine_a, cosine_b, gap, separable)


def _some(vectors: Tensor) -> Tensor:
    if len(vectors) <= SOME:
        return vectors
    return vectors[torch.arange(SOME) * len(vectors) // SOME]


def _all_pairs(vectors: Tensor) -> tuple[float, float]:
    """Uniformity and mean cosine over all pairs of different items; NaN for a single one."""
    some = _some(vectors)
    n = len(some)
    if n < 2:
        return float("nan"), float("nan")
    cosines = some @ some.t()
    closeness = float((((4 * cosines - 4).exp().sum() - n) / (n * (n - 1))).clamp(min=1e-30).log())  # d² = 2 - 2 cos
    return closeness, float((cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1)))


def auroc(positive: Tensor, negative: Tensor) -> float:
    """How often a positive is higher than a negative; ties count half. NaN without one of them."""
    if not len(positive) or not len(negative):
        return float("nan")
    ordered = negative.double().sort().values
    given = positive.double()
    below, upto = torch.searchsorted(ordered, given), torch.searchsorted(ordered, given, right=True)
    return float(((below + upto) / 2).mean() / len(negative))


@dataclass(frozen=True)
class Hubness:
    """How unevenly a gallery is returned; figures of `polysem eval`. counts[i]: answers that are among the first k of
    edges[i] to edges[i + 1] - 1 queries. expected: queries per answer if all were returned alike."""

    skewness: float
    never_returned: float
    largest_hub: float
    k: int
    expected: float
    edges: tuple[int, ...]
    counts: tuple[int, ...]


def hubness(best: TopK, gallery: int) -> Hubness:
    found = metrics.hubness(best, gallery)
    first = best.rank()[0][:, : metrics.DEPTH]
    times = np.bincount(first[first >= 0], minlength=gallery)
    edges = _edges(int(times.max(initial=0)))
    counts = np.histogram(times, bins=[*edges])[0]
    return Hubness(
        found["skewness"],
        found["never_returned"],
        found["largest_hub"],
        int(found["k"]),
        float(times.mean()),
        tuple(edges),
        tuple(map(int, counts)),
    )


def _edges(most: int) -> list[int]:
    """0 has a bin of its own; the others are of one width."""
    width = max(1, -(-most // _BINS))
    return [0, *range(1, most + width + 1, width)]
