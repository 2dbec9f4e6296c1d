"""Base class of similarities: two collections of sets in, a score for every pair out, in bounded memory."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveFloat
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polysem import cpu_blocks
from polysem.errors import ConfigError, InputError, kind, unknown
from polysem.features import require_float
from polysem.registry import Part, Registry

registry: Registry[Similarity] = Registry("similarity")

Reduce = Callable[[Tensor], Tensor]

FORMULAS = ("max", "chamfer", "smooth_chamfer", "soft_maximum")
"""What the search engine and its C kernels compute from inner products: the maximum over all pairs, the mean both ways
of maxima over the other set, the same with soft maxima, and the mean over a text's elements of the mean over an image's
with softmax weights."""

DISTANCE_FLOPS = 4
"""Per pair, from the inner product to the distance: sum of squares, difference, clamp and root."""


@dataclass(frozen=True)
class InnerProductScore:
    """A similarity as exact search computes it from inner products: by one of `FORMULAS`, and by no other.

    All but soft_maximum are monotone in every inner product and move by no more than they do, so that bounds on inner
    products are bounds on the score. soft_maximum is bounded by the plain maximum, which is monotone.
    alpha: of the soft maximum of the last two formulas; infinite for the plain maximum of the others.
    """

    formula: str
    alpha: float = math.inf

    def __post_init__(self) -> None:
        if self.formula not in FORMULAS or (self.formula in ("smooth_chamfer", "soft_maximum")) != (
            0 < self.alpha < math.inf
        ):
            raise ConfigError(
                f"Exact search computes {', '.join(FORMULAS)}, the last two with a finite alpha > 0; got {self}. "
                "Leave search_formula out of a similarity of another formula: its own code scores it."
            )

    @property
    def both_ways(self) -> bool:
        return self.formula in ("chamfer", "smooth_chamfer")


# Values held at once for each element pair: the product, its reductions and their intermediates; with a gradient, also
# what is kept for it and what it is made of.
_COPIES, _COPIES_WITH_GRADIENT = 3, 8


class Similarity(Part):
    """Scores sets of unit vectors against sets of unit vectors; larger is more alike.

    A similarity is defined by two pure functions of the elements' closeness c (cosines unless it says otherwise):
    `reduce`, from the closeness of all element pairs to the score, and `shares`, that score split over the pairs.
    The sets of one side share a size; the two sides need not.
    """

    _cache_pairs = 1 << 19
    """Element pairs of a block: large enough for the matrix product, small enough for `reduce` to find them in a core's
    cache (measured)."""

    normalises: ClassVar[bool] = False
    """Whether it divides by the vectors' norms, so that their length does not count."""
    symmetric: ClassVar[bool] = True
    """Whether the two sides may change places. Where not, images come first: see `search_scores`."""
    single_vectors: ClassVar[bool] = False
    """Whether it compares sets of one alone."""
    search_formula: str | None = None
    """Which of `FORMULAS` its `reduce` is: then it can be searched exactly. Checked when the class is defined; a
    subclass with a `reduce` of its own has to say it anew."""
    alpha: float = math.inf
    """Of the soft maximum; infinite for a plain one."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "reduce" in vars(cls):
            cls.search_formula = vars(cls).get("search_formula")
        if cls.search_formula not in (None, *FORMULAS):
            raise unknown(f"formula of exact search in {cls.__name__}.search_formula", cls.search_formula, FORMULAS)

    def __init__(self, budget_mb: PositiveFloat = 256.0) -> None:
        """budget_mb: memory for intermediate values; larger problems are cut into blocks that fit."""
        super().__init__()
        self.budget_mb = budget_mb

    def forward(self, a: Tensor | NDArray[Any], b: Tensor | NDArray[Any]) -> Tensor:
        """`scores` of tensors or of arrays."""
        a, b = (torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in (a, b))
        return self.scores(a, b)

    def scores(self, a: Tensor, b: Tensor, budget_mb: float | None = None) -> Tensor:
        """(I, K, D), (T, L, D) -> (I, T). Differentiable; half-precision input is scored in float32."""
        a, b = _check_sides(a, b)
        return self.score_prepared(self.prepare(a), self.prepare(b), budget_mb)

    def search_scores(self, queries: Tensor, items: Tensor, side: Literal["image", "text"]) -> Tensor:
        """(Q, L, D), (N, K, D) -> (Q, N): scores of queries of either kind with the items of one side of an index.

        Where the similarity is not symmetric, images are searched as by texts, and texts as by images.
        """
        if self.symmetric or side == "text":
            return self.scores(queries, items)
        return self.scores(items, queries).t()

    def match_probabilities(self, scores: Tensor) -> Tensor | None:
        """Scores -> the probability that a pair matches, where the similarity is calibrated to tell; None elsewhere."""
        return None

    def prepare(self, x: Tensor) -> Tensor:
        """Preprocess one side once, before it is scored many times; as many sets of the same size."""
        return x

    def score_prepared(self, a: Tensor, b: Tensor, budget_mb: float | None = None) -> Tensor:
        """`scores` of two sides that went through `prepare`."""
        a, b = _check_sides(a, b)
        budget = self.budget_mb if budget_mb is None else budget_mb
        if not 0 < budget < math.inf:
            raise InputError(f"budget_mb must be a positive number, got {budget}.")
        values = int(budget * 2**20 / a.element_size())
        wants_gradient = a.requires_grad or b.requires_grad or any(p.requires_grad for p in self.parameters())
        differentiable = torch.is_grad_enabled() and wants_gradient
        with torch.autocast(a.device.type, enabled=False):
            block = partial(self._score_block, self.reducer(a, b))
            if differentiable:
                rows, columns = _block_size(a, b, values, _COPIES_WITH_GRADIENT)
            else:
                rows, columns = _block_size(a, b, values // cpu_blocks.count(a.device), _COPIES, self._cache_pairs)
            if rows >= len(a) and columns >= len(b):
                return block(a, b)
            if differentiable:  # the insides of a block are made again for the gradient
                again = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
                return torch.cat([torch.cat([again(x, y) for y in b.split(columns)], dim=1) for x in a.split(rows)])
            scores = a.new_empty(len(a), len(b))

            def fill(i: int, t: int) -> None:
                scores[i : i + rows, t : t + columns] = block(a[i : i + rows], b[t : t + columns])

            corners = [partial(fill, i, t) for t in range(0, len(b), columns) for i in range(0, len(a), rows)]
            cpu_blocks.run(corners, a.device)
            return scores

    def contributions(self, x: Tensor, y: Tensor) -> Tensor:
        """(..., K, D), (..., L, D) -> (..., K, L): each element pair's share of the score. The shares sum to it."""
        tensors = isinstance(x, Tensor) and isinstance(y, Tensor)
        if not tensors or x.ndim < 2 or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-1]:
            raise InputError(
                "contributions() takes one set against one set, tensors of (K, dim) and (L, dim), or as many of each; "
                f"got {kind(x)} and {kind(y)}."
            )
        dtype = _scoring_dtype(x, y)
        with torch.autocast(x.device.type, enabled=False):
            x, y = self.prepare(x.to(dtype)), self.prepare(y.to(dtype))
            return self.shares(self.closeness(x, y.transpose(-1, -2)))

    def closeness(self, x: Tensor, y: Tensor) -> Tensor:
        """(..., M, D), (..., D, N) -> (..., M, N): how close two elements are; here the cosine of unit vectors."""
        return x @ y

    def inner_product_score(self) -> InnerProductScore | None:
        """How exact search scores with it, by its `search_formula`; None where it cannot."""
        return None if self.search_formula is None else InnerProductScore(self.search_formula, self.alpha)

    @abstractmethod
    def reduce(self, c: Tensor) -> Tensor:
        """(I, K, L, T) closeness -> (I, T) scores. May overwrite c. T stands last so that every pass is contiguous."""

    @abstractmethod
    def shares(self, c: Tensor) -> Tensor:
        """(..., K, L) closeness -> (..., K, L) shares of the score."""

    def pair_weights(self, c: Tensor) -> Tensor:
        """(K, L) closeness of one set to another -> (K, L): how much the closeness of each pair counts in the score.

        Here the slope of the score. Where the score is a weighted mean of the closeness, override it by the weights.
        """
        with torch.enable_grad():
            c = c.detach()[None, ..., None].requires_grad_()
            (slope,) = torch.autograd.grad(self.reduce(c * 1.0).sum(), c)
        return slope[0, ..., 0]

    def flops(self, K: int, L: int, D: int) -> int:
        """Floating-point operations to score one pair, sets of K and L vectors of width D.

        A sum, product, comparison or function value counts one. What depends on one side alone is left out.
        """
        return 2 * K * L * D + self.reduce_flops(K, L)

    @abstractmethod
    def reduce_flops(self, K: int, L: int) -> int:
        """The part of `flops` that comes after the K * L inner products."""

    def reducer(self, a: Tensor, b: Tensor) -> Reduce:
        """The way to `reduce` these two sides; a similarity may have a faster one for sides that allow it."""
        return self.reduce

    def _score_block(self, reduce: Reduce, a: Tensor, b: Tensor) -> Tensor:
        """(i, K, D), (t, L, D) -> (i, t)."""
        # The texts innermost, so that a reduction over elements runs along contiguous memory.
        columns = b.transpose(0, 1).flatten(0, 1).t()
        c = self.closeness(a.flatten(0, 1), columns)
        return reduce(c.view(len(a), a.shape[1], b.shape[1], len(b)))


def _block_size(a: Tensor, b: Tensor, values: int, copies: int, most_pairs: float = math.inf) -> tuple[int, int]:
    """How many sets of each side to take at once so that about `values` numbers are held: `copies` for each element
    pair and one for each number of the two sides; and no more than `most_pairs` of the former."""
    i, t = max(1, len(a)), max(1, len(b))
    k, size, dim = a.shape[1], b.shape[1], a.shape[2]
    pairs = i * t * k * size
    if pairs <= most_pairs and pairs * copies + (i * k + t * size) * dim <= values:
        return i, t
    # Half for the pairs, half for the sides; as square as the pairs allow, wider than high for the matrix product.
    sets = max(1, int(min(values // (2 * copies), most_pairs)) // (k * size))
    columns = max(1, min(t, 2 * int(sets**0.5), values // (4 * size * dim)))
    rows = max(1, min(i, sets // columns, values // (4 * k * dim)))
    return rows, columns


def _check_sides(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    for side, x in (("first", a), ("second", b)):
        remedy = "The set of one item: x[None]; single vectors are sets of one: x[:, None]."
        require_float(x, f"The {side} argument of scores()", "(items, set size, dim)", remedy)
        if x.shape[1] == 0:
            raise InputError(f"The {side} argument of scores() holds empty sets, {kind(x)}.")
    if a.shape[2] != b.shape[2] or a.device != b.device:
        raise InputError(
            f"Both sides need one width and device, got {a.shape[2]} on {a.device} and {b.shape[2]} on {b.device}. "
            "Were they made by the same model?"
        )
    dtype = _scoring_dtype(a, b)
    return a.to(dtype), b.to(dtype)


def _scoring_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """float32 at least: half precision is for storage."""
    return torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """(..., M, D), (..., D, N) -> (..., M, N)."""
    squares = x.square().sum(-1, keepdim=True) + y.square().sum(-2, keepdim=True)
    return (squares - 2 * x @ y).clamp(min=0)


def distances(x: Tensor, y: Tensor) -> Tensor:
    """The root of `squared_distances`, with gradient 0 where two points coincide."""
    squared = squared_distances(x, y)
    together = squared == 0  # not "squared > 0", which would take NaN for a perfect match
    return torch.where(together, 0.0, torch.where(together, 1.0, squared).sqrt())


def split_evenly(c: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Weights that sum to 1 over `dim` and share evenly among the largest of c: a tie is shared."""
    weights = (c == c.amax(dim, keepdim=True)).to(c.dtype)
    return weights / weights.sum(dim, keepdim=True)
