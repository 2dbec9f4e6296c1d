from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from polysem import masked
from polysem.errors import unknown
from polysem.features import LocalFeatures
from polysem.sets.base import SetPrediction, SetPredictor, TokenSum, registry
from polysem.sets.slots import Dropout

# The released code's names inside one layer, and ours; then those of tensors that no embedding depends on: the heads of
# its masked-word and masked-region tasks, and a second classifier that it builds and never calls.
_LAYER_KEYS = {
    "self_attn.linears.0": "query",
    "self_attn.linears.1": "key",
    "self_attn.linears.2": "value",
    "self_attn.linears.3": "out",
    "feed_forward.w_1": "expand",
    "feed_forward.w_2": "contract",
    "sublayer.0.norm": "attention_norm",
    "sublayer.1.norm": "feed_norm",
}
_UNUSED = ("head.fc_MLM.", "head.fc_MOC.", "transformer.fc_predict.")
_LEAVES = {"a_2": "weight", "b_2": "bias"}


class SpreadNorm(nn.Module):
    """weight * (x - mean) / (std + 1e-6) + bias, with the unbiased deviation: not nn.LayerNorm's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (x.std(-1, keepdim=True) + 1e-6) + self.bias


class Layer(nn.Module):
    """Pre-norm self-attention and feed-forward, each added to what it read."""

    def __init__(self, dim: int, heads: int, ff: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.attention_norm, self.feed_norm = SpreadNorm(dim), SpreadNorm(dim)
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.expand, self.contract = nn.Linear(dim, ff), nn.Linear(ff, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """(B, N, D) -> (B, N, D). real: (B, 1, 1, N) the tokens to attend to; None for all."""
        normed = self.attention_norm(x)
        query, key, value = (self._split(part(normed)) for part in (self.query, self.key, self.value))
        rate = self.rate if self.training else 0.0
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=real, dropout_p=rate)
        x = x + self.dropout(self.out(read.transpose(1, 2).flatten(2)))
        result: Tensor = x + self.dropout(self.contract(self.dropout(self.expand(self.feed_norm(x)).relu())))
        return result

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


@registry.register("classes")
class Classes(SetPredictor):
    """Label-wise semantic sharing: an item as the mean of what its tokens say of each class. `dim` counts the classes.

    h = ReLU(norm(transformer(x))); p = unit(sigmoid(W h)) for each token; vector = mean of p over the tokens.
    Made to be shared: both towers end in it, text["sets"] = "shared", and read it at width `input_dim`.

    The mean of unit vectors is shorter than 1. `normalise` makes it a unit vector like any other set element; without
    it, embeddings are those of the released code, which compares them by cosine, or on COCO by their plain product.

    variant "official" has no padding mask, as the released code: padded tokens attend, are attended to and counted.
    """

    needs_global = False

    def __init__(
        self,
        dim: PositiveInt,
        input_dim: Annotated[int, Field(ge=2)],
        layers: PositiveInt = 6,
        heads: PositiveInt = 8,
        ff: PositiveInt = 2048,
        dropout: Dropout = 0.0,
        normalise: bool = True,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(dim, 1, input_dim)
        if input_dim % heads:
            self.reject_knobs(f"input_dim={input_dim} does not divide into heads={heads}.")
        self.normalise, self.variant = normalise, variant
        self.layers = nn.ModuleList(Layer(input_dim, heads, ff, dropout) for _ in range(layers))
        self.norm = SpreadNorm(input_dim)
        self.predict_classes = nn.Linear(input_dim, dim)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        weights, said = self._said(features)
        residual = weights[:, None] @ said
        return SetPrediction(masked.unit(residual) if self.normalise else residual, weights[:, None], residual)

    def as_sum(self, features: LocalFeatures) -> TokenSum:
        weights, said = self._said(features)
        return TokenSum(weights[..., None] * said, weights)

    def _said(self, features: LocalFeatures) -> tuple[Tensor, Tensor]:
        """(B, N) the weight of each token, (B, N, C) what it says."""
        official = self.variant == "official"
        counted = torch.ones_like(features.mask) if official else features.mask
        said = self.token_classes(features if official else features.zero_padded())
        return counted.to(said.dtype) / counted.sum(1, keepdim=True), said

    def token_classes(self, features: LocalFeatures) -> Tensor:
        """(B, N, C): how much each token speaks for each class, as unit vectors."""
        # Without padding no mask is needed, and attention without one is faster.
        plain = self.variant == "official" or bool(features.mask.all())
        x = features.values
        for layer in self.layers:
            x = layer(x, None if plain else features.mask[:, None, None])
        return masked.unit(self.predict_classes(self.norm(x).relu()).sigmoid())

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The names of the released transformer and head, as `transformer.*` and `head.*`. Other heads are dropped."""
        return {
            self._rename(name): torch.as_tensor(tensor)
            for name, tensor in state.items()
            if not name.startswith(_UNUSED)
        }

    def _rename(self, name: str) -> str:
        module, _, leaf = name.rpartition(".")
        leaf = _LEAVES.get(leaf, leaf)
        known = {"transformer.encoder.norm": "norm", "head.fc_predict": "predict_classes"}
        if module in known:
            return f"{known[module]}.{leaf}"
        match = re.fullmatch(r"transformer\.encoder\.layers\.(\d+)\.(.+)", module)
        if match is None or match[2] not in _LAYER_KEYS:
            raise unknown("tensor of the released label-wise model", name, [*known, "transformer.encoder.layers.<i>.*"])
        return f"layers.{match[1]}.{_LAYER_KEYS[match[2]]}.{leaf}"
