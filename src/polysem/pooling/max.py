from __future__ import annotations

from torch import Tensor

from polysem.pooling.base import Pooling, registry


@registry.register("max")
class Max(Pooling):
    """Largest value of each dimension: only the most salient token speaks there."""

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(~mask[..., None], float("-inf")).amax(1)
