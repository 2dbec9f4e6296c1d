from __future__ import annotations

from torch import Tensor

from polysem import masked_ops
from polysem.pooling.base import Pooling, registry


@registry.register("mean")
class Mean(Pooling):
    """Average of the tokens: every token speaks equally. The cheapest; the usual choice for text."""

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return masked_ops.mean(x, mask)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        return (mask / mask.sum(1, keepdim=True)).to(x.dtype)[..., None].expand_as(x)
