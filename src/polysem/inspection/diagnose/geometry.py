"""The joint space and the sets in it: alignment, uniformity, the gap between the sides and hubs; how far the elements
of sets lie apart, which of them do the work, and what the score makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polysem import masked_ops
from polysem.evaluation import metrics
from polysem.evaluation.ranking import rank_bidirectional
from polysem.evaluation.score_matrix import Floats, Rows, Scores
from polysem.evaluation.top_k import TopK
from polysem.similarity import Similarity

SAMPLE = 4000
"""Vectors at most that all pairs are taken of."""
FIRST = 10
"""Answers of a query that are compared."""
_HUB_BINS, _SPREAD_BINS = 20, 24
_LEAST = 1e-8
"""Circular variance that counts as none."""
_BATCH = 2048


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

    a, b = (masked_ops.normalise(masked_ops.normalise(side.float()).mean(1)) for side in (images, texts))
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
    width = max(1, -(-most // _HUB_BINS))
    edges = [0, *range(1, most + width + 1, width)]
    counts = tuple(map(int, np.histogram(times, bins=edges)[0]))
    named = {name: figures[name] for name in ("skewness", "never_returned", "largest_hub")}
    return Hubness(**named, k=int(figures["k"]), expected=float(times.mean()), edges=tuple(edges), counts=counts)


@dataclass(frozen=True)
class SetSpread:
    """How far the elements of one side's sets lie apart.

    variance: circular variance, 1 - |mean of the unit elements|, mean over items; log_variance: its natural logarithm.
    within: the share of all variance of the side's elements that lies within sets, the rest being between items.
    edges, counts: a histogram of ln(circular variance) over items.
    """

    elements: int
    variance: float
    log_variance: float
    within: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


def measure_spread(vectors: Tensor) -> SetSpread:
    """The spread of (n, K, D) sets, K at least 2."""
    unit = masked_ops.normalise(vectors.float())
    middle = unit.mean(1)
    variances = (1 - middle.norm(dim=-1)).clamp(min=0)
    within = (unit - middle[:, None]).square().sum(-1).mean()
    whole = (unit - unit.mean((0, 1))).square().sum(-1).mean().clamp(min=1e-12)
    counts, edges = np.histogram(variances.clamp(min=_LEAST).log().numpy(), bins=_SPREAD_BINS)
    mean = float(variances.mean())
    histogram = tuple(map(float, edges)), tuple(map(int, counts))
    return SetSpread(int(vectors.shape[1]), mean, math.log(max(mean, _LEAST)), float(within / whole), *histogram)


@dataclass(frozen=True)
class ElementUsage:
    """The elements of one side, in their order; supervision and wins sum to 1.

    supervision: the share of the score's gradient that matching pairs send to the element, which is what training
    through this similarity can teach it. wins: how often the element is in the pair's closest two. constancy: |mean of
    the element over all items|², the share of it that is the same for every item.
    effective: exp(entropy of the supervision), the number of elements that are in use.
    """

    supervision: tuple[float, ...]
    wins: tuple[float, ...]
    constancy: tuple[float, ...]
    effective: float


def measure_usage(
    images: Tensor, texts: Tensor, owners: npt.NDArray[np.integer], similarity: Similarity
) -> tuple[ElementUsage, ElementUsage]:
    """Of images and of texts, over all matching pairs. owners: (T,) the image of each text."""
    k, size = images.shape[1], texts.shape[1]
    gradient, wins = torch.zeros(k, size, dtype=torch.float64), torch.zeros(k, size, dtype=torch.float64)
    rows = torch.as_tensor(owners, dtype=torch.long)
    for first in range(0, len(texts), _BATCH):
        own, other = images[rows[first : first + _BATCH]].float(), texts[first : first + _BATCH].float()
        # How much the scores of these pairs change with the closeness of each pair of elements.
        with torch.no_grad():
            a, b = similarity.prepare(own), similarity.prepare(other)
            closeness = similarity.closeness(a, b.transpose(1, 2)).permute(1, 2, 0)[None]
        with torch.enable_grad():
            closeness = closeness.clone().requires_grad_()
            (slope,) = torch.autograd.grad(similarity.reduce(closeness * 1.0).sum(), closeness)
        gradient += slope[0].abs().sum(-1).double()
        cosines = masked_ops.normalise(own) @ masked_ops.normalise(other).transpose(1, 2)
        wins += torch.bincount(cosines.flatten(1).argmax(1), minlength=k * size).view(k, size)
    return _summarise(gradient.sum(1), wins.sum(1), images), _summarise(gradient.sum(0), wins.sum(0), texts)


def _summarise(gradient: Tensor, wins: Tensor, vectors: Tensor) -> ElementUsage:
    shares = gradient / gradient.sum().clamp(min=1e-300)
    entropy = -sum(share * math.log(share) for share in shares.tolist() if share > 0)
    constancy = masked_ops.normalise(vectors.float()).mean(0).square().sum(-1)
    wins = wins / wins.sum()
    return ElementUsage(tuple(shares.tolist()), tuple(wins.tolist()), tuple(constancy.tolist()), math.exp(entropy))


@dataclass(frozen=True)
class SingleVectorOverlap:
    """Of the first answers to a query, the share that stays when every set is replaced by one vector, the mean of its
    elements. At 1 the score makes nothing of there being several."""

    i2t: float
    t2i: float
    first: int


def compare_with_single_vectors(
    best: dict[str, TopK], images: Tensor, texts: Tensor, owners: npt.NDArray[np.integer]
) -> SingleVectorOverlap:
    """best: the highest scores of both directions, "i2t" and "t2i"."""
    scores = _InnerProducts(images.float().mean(1), texts.float().mean(1))
    ranked, _ = rank_bidirectional(scores, owners, keep=FIRST)
    i2t, t2i = (_overlap(best[way], cast(TopK, ranked[way].top)) for way in ("i2t", "t2i"))
    return SingleVectorOverlap(i2t, t2i, min(FIRST, *scores.shape))


def _overlap(one: TopK, other: TopK) -> float:
    a, b = one.rank()[0][:, :FIRST], other.rank()[0][:, :FIRST]
    kept = (a[:, :, None] == b[:, None, :]).any(2)
    return float(kept[a >= 0].mean()) if (a >= 0).any() else float("nan")


class _InnerProducts(Scores):
    """Inner products of single vectors."""

    def __init__(self, images: Tensor, texts: Tensor) -> None:
        self.images, self.texts = images.double(), texts.double()
        self.shape = (len(images), len(texts))

    def tile(self, images: Rows, texts: Rows) -> Floats:
        with torch.inference_mode():
            return (self.images[images] @ self.texts[texts].t()).numpy()
