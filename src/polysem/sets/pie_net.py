from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.features import LocalFeatures
from polysem.sets.base import Rate, SetPrediction, SetPredictor, registry


@registry.register("pie_net")
class PIENet(SetPredictor):
    """PVSE's polysemous network: K attention heads over the tokens, each added to the global feature.

    attn = softmax over tokens of w_2 tanh(w_1 x); r = sigmoid(fc(attn^T x)); vectors = LayerNorm(global + r).
    Heads do not compete: without a diversity loss they tend to say the same.
    """

    official_keys = {
        "attention.w_1.weight": "w_1.weight",
        "attention.w_2.weight": "w_2.weight",
        "fc.weight": "fc.weight",
        "fc.bias": "fc.bias",
        "layer_norm.weight": "norm.weight",
        "layer_norm.bias": "norm.bias",
    }

    def __init__(
        self,
        dim: PositiveInt,
        k: PositiveInt = 4,
        input_dim: PositiveInt | None = None,
        hidden: PositiveInt | None = None,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(dim, k, input_dim or dim)
        width = input_dim or dim
        hidden = hidden or max(1, width // 2)
        self.w_1 = nn.Linear(width, hidden, bias=False)
        self.w_2 = nn.Linear(hidden, k, bias=False)
        self.fc = nn.Linear(width, dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        for weight in (self.w_1.weight, self.w_2.weight, self.fc.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.fc.bias)

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        clean = features.zero_padded()
        logits = self.w_2(torch.tanh(self.w_1(clean.values))).transpose(1, 2)
        attention = masked_ops.softmax(logits, clean.mask[:, None], dim=-1)
        residual = torch.sigmoid(self.fc(attention @ clean.values))
        joined = self.norm(self.dropout(residual) + global_feature[:, None])  # type: ignore[index]
        return SetPrediction(masked_ops.unit(joined), attention, residual)
