from __future__ import annotations

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polysem.objectives.base import Loss, Regulariser, registry
from polysem.similarity.distance import distances

# Kernel entries held at once; a batch of 1,200 sets of four has 23 million.
_BLOCK = 1 << 22


@registry.register("mmd")
class MMD(Regulariser):
    """Maximum mean discrepancy: pulls the distribution of image elements onto that of text elements.

    E k(x, x') - 2 E k(x, y) + E k(y, y') over all elements, k = exp(-gamma |x - x'|) with the distance not squared and
    diagonals included, as PVSE and DivE compute it. DivE adds 0.01 of it.
    """

    def __init__(self, gamma: PositiveFloat = 0.5) -> None:
        super().__init__()
        self.gamma = gamma

    def loss(self, images: Tensor, texts: Tensor) -> Loss:
        x, y = images.flatten(0, 1), texts.flatten(0, 1)
        # Small differences of distances: half precision would leave nothing of them.
        with torch.autocast(x.device.type, enabled=False):
            mmd = self._within(x) - 2 * self._across(x, y).sum() / (len(x) * len(y)) + self._within(y)
        return Loss(mmd, {"mmd": mmd})

    def _within(self, x: Tensor) -> Tensor:
        """Mean kernel of x with itself. A point's distance to itself is 0 by definition, not by subtraction."""
        return (self._across(x, x, same=True).sum() + len(x)) / len(x) ** 2

    def _across(self, x: Tensor, y: Tensor, same: bool = False) -> Tensor:
        """Row sums of the kernel in blocks of rows; with `same`, without the diagonal."""
        rows = max(1, _BLOCK // len(y))

        def block(part: Tensor, others: Tensor, first: int) -> Tensor:
            kernel = torch.exp(-self.gamma * distances(part, others.t()))
            if same:
                own = torch.arange(len(part), device=part.device)
                kernel = kernel.index_put((own, own + first), kernel.new_zeros(()))
            return kernel.sum(1)

        if rows >= len(x):
            return block(x, y, 0)
        parts = [
            checkpoint(block, part, y, i * rows, use_reentrant=False, preserve_rng_state=False)
            for i, part in enumerate(x.split(rows))
        ]
        return torch.cat(parts)
