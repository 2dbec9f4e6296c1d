from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem.pooling.base import Pooling, registry


def last_state(gru: nn.GRU, x: Tensor, mask: Tensor) -> Tensor:
    """The forward GRU's state after each item's last real token. (B, N, D), (B, N) -> (B, H)."""
    steps = torch.arange(mask.shape[1], device=mask.device)
    # Bring the real tokens of each item to the front, in order, so that a state never passes through padding.
    order = torch.where(mask, steps, steps + mask.shape[1]).argsort(1)
    packed = x.gather(1, order[..., None].expand_as(x))
    states, _ = gru(packed)
    last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, states.shape[2])
    result: Tensor = states.gather(1, last).squeeze(1)
    return result


@registry.register("seq2seq")
class Seq2Seq(Pooling):
    """The last state of a GRU that reads the tokens in order. The only pooling here that cares about their order."""

    def __init__(self, dim: PositiveInt) -> None:
        super().__init__(dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return last_state(self.gru, x, mask)
