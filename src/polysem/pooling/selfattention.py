from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.pooling.base import Pooling, registry


@registry.register("selfattention")
class SelfAttention(Pooling):
    """One transformer encoder layer over the tokens, then their mean: tokens may reword each other first."""

    def __init__(
        self,
        dim: PositiveInt,
        heads: PositiveInt = 4,
        ff_mult: PositiveInt = 2,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ) -> None:
        super().__init__(dim)
        if dim % heads:
            self.reject_knobs(f"dim={dim} does not divide into heads={heads}.")
        self.layer = nn.TransformerEncoderLayer(
            dim, heads, dim_feedforward=ff_mult * dim, dropout=dropout, batch_first=True, norm_first=True
        )

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        mixed = self.layer(x, src_key_padding_mask=~mask)
        return masked_ops.mean(mixed.masked_fill(~mask[..., None], 0.0), mask)
