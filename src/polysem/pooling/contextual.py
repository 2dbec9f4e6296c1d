"""Poolings in which tokens change each other before one vector is made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, cast

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.dropout import Rate
from polysem.errors import unknown
from polysem.features import LocalFeatures
from polysem.pooling.base import Pooling, registry


def last_state(gru: nn.GRU, x: Tensor, mask: Tensor) -> Tensor:
    """The forward GRU's state after each item's last real token. (B, N, D), (B, N) -> (B, H)."""
    steps = torch.arange(mask.shape[1], device=mask.device)
    # Bring the real tokens of each item to the front, in order, so that a state never passes through padding.
    order = torch.where(mask, steps, steps + mask.shape[1]).argsort(1)
    states, _ = gru(x.gather(1, order[..., None].expand_as(x)))
    last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, states.shape[2])
    return cast(Tensor, states.gather(1, last).squeeze(1))


@registry.register("seq2seq")
class Seq2Seq(Pooling):
    """The last state of a GRU that reads the tokens in order. The only pooling that depends on their order."""

    def __init__(self, dim: PositiveInt) -> None:
        super().__init__(dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return last_state(self.gru, x, mask)


class RelationLayer(nn.Module):
    """One reasoning step: x + BN(W (theta(x) phi(x)^T / n) g(x)). BN starts at 0, so the step starts as identity."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.theta, self.phi, self.g, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        real = mask[..., None]
        # Zeroing g alone keeps padding out: it then adds nothing to any token's message.
        messages = self.g(x).masked_fill(~real, 0.0)
        # theta (phi^T g) costs N D^2 where (theta phi^T) g costs N^2 D; for the usual N < D the latter is cheaper.
        relations = self.theta(x) @ self.phi(x).transpose(1, 2) / mask.sum(1)[:, None, None]
        if masked_ops.is_tracing():
            every: Tensor = self.norm(self.out(relations @ messages).flatten(0, 1)).view(*mask.shape, -1)
            return x + every.masked_fill(~real, 0.0)
        update = torch.zeros_like(x)
        normed = masked_ops.batch_norm(self.norm, self.out(relations @ messages)[mask])
        update[mask] = normed.to(x.dtype)  # autocast may differ
        return x + update


@registry.register("gcn")
class GCN(Pooling):
    """VSRN's reasoning: graph convolutions over all token pairs, then a GRU whose last state is the embedding.

    variant "official" keeps what the released code does: padding takes part everywhere, and the l2 norm before the
    GRU runs over the tokens of each dimension instead of over the dimensions of each token.
    """

    def __init__(
        self, dim: PositiveInt, layers: PositiveInt = 4, variant: Literal["paper", "official"] = "paper"
    ) -> None:
        super().__init__(dim)
        self.variant = variant
        self.layers = nn.ModuleList(RelationLayer(dim) for _ in range(layers))
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def prepare(self, features: LocalFeatures) -> tuple[Tensor, Tensor]:
        if self.variant == "paper":
            return super().prepare(features)
        return features.values, torch.ones_like(features.mask)

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        x = masked_ops.normalise(x) if self.variant == "paper" else nn.functional.normalize(x, dim=1)
        return last_state(self.gru, x, mask)

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """VSRN's names: Rs_GCN_<i>.{g,theta,phi,W.0,W.1}.*, img_rnn.*; its 1x1 convolutions become linear maps."""
        inner = {"g": "g", "theta": "theta", "phi": "phi", "W.0": "out", "W.1": "norm"}
        own = {}
        for name, value in state.items():
            tensor = torch.as_tensor(value)
            layer = re.fullmatch(r"Rs_GCN_(\d+)\.(g|theta|phi|W\.0|W\.1)\.(\w+)", name)
            if layer:
                ours = f"layers.{int(layer[1]) - 1}.{inner[layer[2]]}.{layer[3]}"
                own[ours] = tensor.flatten(1) if tensor.ndim == 3 else tensor
            elif name.startswith("img_rnn."):
                own["gru." + name.removeprefix("img_rnn.")] = tensor
            else:
                raise unknown("tensor of VSRN's reasoning", name, ["Rs_GCN_<i>.{g,theta,phi,W.0,W.1}.*", "img_rnn.*"])
        return own


@registry.register("selfattention")
class SelfAttention(Pooling):
    """One transformer encoder layer over the tokens, then their mean."""

    def __init__(self, dim: PositiveInt, heads: PositiveInt = 4, ff_mult: PositiveInt = 2, dropout: Rate = 0.0) -> None:
        super().__init__(dim)
        if dim % heads:
            self.reject_knobs(f"dim={dim} does not divide into heads={heads}.")
        self.layer = nn.TransformerEncoderLayer(
            dim, heads, dim_feedforward=ff_mult * dim, dropout=dropout, batch_first=True, norm_first=True
        )

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        mixed = masked_ops.encoder_layer(self.layer, x, mask)
        return masked_ops.mean(mixed.masked_fill(~mask[..., None], 0.0), mask)
