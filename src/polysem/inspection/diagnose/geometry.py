"""The geometry of the joint space: alignment, uniformity, the gap between the sides, and hubs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polysem import masked_ops
from polysem.evaluation import metrics
from polysem.evaluation.top_k import TopK

SAMPLE = 4000
"""Vectors at most that all pairs are taken of."""
_BINS = 20


@dataclass(frozen=True)
class EmbeddingGeometry:
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


def measure_geometry(images: Tensor, texts: Tensor, owners: npt.NDArray[np.integer]) -> EmbeddingGeometry:
    """The geometry of (n, K, D) images and (T, L, D) texts. owners: (T,) the image of each text."""
    from sklearn.metrics import roc_auc_score

    a, b = (masked_ops.unit(masked_ops.unit(side.float()).mean(1)) for side in (images, texts))
    alignment = float((a[torch.as_tensor(owners, dtype=torch.long)] - b).square().sum(-1).mean())
    between = b.mean(0) - a.mean(0)
    along = [_sample(side) @ between for side in (a, b)]
    is_text = np.repeat([False, True], [len(side) for side in along])
    separable = float(roc_auc_score(is_text, torch.cat(along).numpy()))
    (uniform_a, cosine_a), (uniform_b, cosine_b) = _compare_all_pairs(a), _compare_all_pairs(b)
    return EmbeddingGeometry(alignment, uniform_a, uniform_b, cosine_a, cosine_b, float(between.norm()), separable)


def _sample(vectors: Tensor) -> Tensor:
    """At most `SAMPLE` of the vectors, spread evenly."""
    return vectors if len(vectors) <= SAMPLE else vectors[torch.arange(SAMPLE) * len(vectors) // SAMPLE]


def _compare_all_pairs(vectors: Tensor) -> tuple[float, float]:
    """Uniformity and mean cosine over all pairs of different items; NaN for a single one."""
    some = _sample(vectors)
    n = len(some)
    if n < 2:
        return float("nan"), float("nan")
    cosines = some @ some.t()
    closeness = float((((4 * cosines - 4).exp().sum() - n) / (n * (n - 1))).clamp(min=1e-30).log())  # d² = 2 - 2 cos
    return closeness, float((cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1)))


@dataclass(frozen=True)
class Hubness:
    """How unevenly a gallery is returned; figures of `polysem eval`. counts[i]: answers that are among the first k of
    edges[i] to edges[i + 1] - 1 queries. expected: queries per answer if all were returned equally often."""

    skewness: float
    never_returned: float
    largest_hub: float
    k: int
    expected: float
    edges: tuple[int, ...]
    counts: tuple[int, ...]


def measure_hubness(best: TopK, gallery: int) -> Hubness:
    """The hubness of a gallery of this size, from the highest scores of its queries."""
    figures = metrics.hubness(best, gallery)
    first = best.rank()[0][:, : metrics.DEPTH]
    times = np.bincount(first[first >= 0], minlength=gallery)
    # 0 has a bin of its own; the others are of one width.
    most = int(times.max(initial=0))
    width = max(1, -(-most // _BINS))
    edges = [0, *range(1, most + width + 1, width)]
    counts = tuple(map(int, np.histogram(times, bins=edges)[0]))
    named = {name: figures[name] for name in ("skewness", "never_returned", "largest_hub")}
    return Hubness(**named, k=int(figures["k"]), expected=float(times.mean()), edges=tuple(edges), counts=counts)
