"""What a similarity is: two collections of sets in, a score for every pair out, in bounded memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polysem import threads
from polysem.errors import InputError
from polysem.registry import Part, Registry

registry: Registry[Similarity] = Registry("similarity")

Reduce = Callable[[Tensor], Tensor]

# Element pairs of a block: large enough for the matrix product, small enough to stay in a core's cache (measured).
_CACHE_PAIRS = 1 << 19
# Values held at once for each element pair: the product, its reductions and their intermediates.
_COPIES = 3


class Similarity(Part):
    """Scores sets of unit vectors against sets of unit vectors; larger is more alike.

    A similarity is defined by two pure functions of the elements' closeness c (cosines unless it says otherwise):
    `reduce`, from the closeness of all element pairs to the score, and `shares`, that score split over the pairs.
    The sets of one side share a size; the two sides need not.
    """

    def __init__(self, budget_mb: PositiveFloat = 64.0) -> None:
        """budget_mb: memory for intermediate values; larger problems are cut into blocks that fit."""
        super().__init__()
        self.budget_mb = budget_mb

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.scores(a, b)

    def scores(self, a: Tensor, b: Tensor, budget_mb: float | None = None) -> Tensor:
        """(I, K, D), (T, L, D) -> (I, T). Differentiable; half-precision input is scored in float32."""
        a, b = _checked(a, b)
        budget = self.budget_mb if budget_mb is None else budget_mb
        if budget <= 0:
            raise InputError(f"budget_mb must be positive, got {budget}.")
        pairs = int(budget * 2**20 / (a.element_size() * _COPIES))
        with torch.autocast(a.device.type, enabled=False):
            if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or any(True for _ in self.parameters())):
                return self._scores_with_gradient(a, b, pairs)
            return self._scores_in_blocks(a, b, pairs)

    def contributions(self, x: Tensor, y: Tensor) -> Tensor:
        """(..., K, D), (..., L, D) -> (..., K, L): each element pair's share of the score. The shares sum to it."""
        if x.ndim < 2 or y.ndim != x.ndim or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-1]:
            raise InputError(
                f"contributions() takes one set against one set, (K, dim) and (L, dim), or equally many of each; "
                f"got {tuple(x.shape)} and {tuple(y.shape)}."
            )
        return self.shares(self.closeness(x, y.transpose(-1, -2)))

    def closeness(self, x: Tensor, y: Tensor) -> Tensor:
        """(..., M, D), (..., D, N) -> (..., M, N): how close two elements are; here the cosine of unit vectors."""
        return x @ y

    @abstractmethod
    def reduce(self, c: Tensor) -> Tensor:
        """(I, K, L, T) closeness -> (I, T) scores. May overwrite c. T stands last so that every pass is contiguous."""

    @abstractmethod
    def shares(self, c: Tensor) -> Tensor:
        """(..., K, L) closeness -> (..., K, L) shares of the score."""

    def reducer(self, a: Tensor, b: Tensor) -> Reduce:
        """The way to `reduce` these two sides; a similarity may have a faster one for sides that allow it."""
        return self.reduce

    def _scores_in_blocks(self, a: Tensor, b: Tensor, pairs: int) -> Tensor:
        reduce = self.reducer(a, b)
        scores = a.new_empty(len(a), len(b))
        rows, columns = _block(a, b, min(pairs // threads.count(a.device), _CACHE_PAIRS))

        def fill(i: int, t: int) -> None:
            part, texts = a[i : i + rows], _columns(b[t : t + columns])
            scores[i : i + rows, t : t + columns] = self._score_block(reduce, part, texts, b.shape[1])

        blocks = [partial(fill, i, t) for t in range(0, len(b), columns) for i in range(0, len(a), rows)]
        threads.run(blocks, a.device)
        return scores

    def _scores_with_gradient(self, a: Tensor, b: Tensor, pairs: int) -> Tensor:
        """In one piece if that fits the budget; else in blocks whose insides are made again for the gradient."""
        reduce = self.reducer(a, b)
        rows, columns = _block(a, b, pairs)
        if rows >= len(a) and columns >= len(b):
            return self._score_block(reduce, a, _columns(b), b.shape[1])

        def block(part: Tensor, texts: Tensor) -> Tensor:
            return self._score_block(reduce, part, _columns(texts), b.shape[1])

        return torch.cat(
            [
                torch.cat(
                    [
                        checkpoint(block, part, texts, use_reentrant=False, preserve_rng_state=False)
                        for texts in b.split(columns)
                    ],
                    dim=1,
                )
                for part in a.split(rows)
            ]
        )

    def _score_block(self, reduce: Reduce, a: Tensor, texts: Tensor, size: int) -> Tensor:
        """(i, K, D), (D, L * t) -> (i, t)."""
        c = self.closeness(a.flatten(0, 1), texts)
        return reduce(c.view(len(a), a.shape[1], size, -1))


def _columns(b: Tensor) -> Tensor:
    """(t, L, D) -> (D, L * t): the texts innermost, so that a reduction over elements runs along contiguous memory."""
    return b.transpose(0, 1).flatten(0, 1).t()


def _block(a: Tensor, b: Tensor, pairs: int) -> tuple[int, int]:
    """How many sets of each side to take at once so that their element pairs stay within `pairs`."""
    sets = max(1, pairs // (a.shape[1] * b.shape[1]))
    if sets >= len(a) * len(b):
        return max(1, len(a)), max(1, len(b))
    columns = max(1, min(len(b), 2 * int(sets**0.5)))
    rows = max(1, min(len(a), sets // columns))
    return rows, max(1, min(len(b), sets // rows))


def _checked(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    for side, x in (("first", a), ("second", b)):
        if not isinstance(x, Tensor) or x.ndim != 3 or not x.is_floating_point() or x.shape[1] == 0:
            given = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(
                f"The {side} argument of scores() must be a floating-point (items, set size, dim) tensor, got {given}. "
                "Single vectors are sets of one: x[:, None]."
            )
    if a.shape[2] != b.shape[2] or a.device != b.device:
        raise InputError(
            f"Both sides need one width and device, got {a.shape[2]} on {a.device} and {b.shape[2]} on {b.device}. "
            "Were they made by the same model?"
        )
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return a.to(dtype), b.to(dtype)


def split_evenly(chosen: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """(bool) -> weights that sum to 1 over `dim` and share evenly among the chosen: a tie belongs to all who tie."""
    weights = chosen.to(torch.get_default_dtype())
    return weights / weights.sum(dim, keepdim=True)
