from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import dropout as dropped
from polysem import masked_ops
from polysem.features import LocalFeatures
from polysem.sets.base import SetPrediction, SetPredictor, registry
from polysem.sets.slots import Dropout


@registry.register("attention_pooling", stored_as="readings")
class AttentionPooling(SetPredictor):
    """K weighted means of the tokens, all projected by the same map: where an item is read, not how, tells them apart.

    attn = softmax over tokens of w_2 tanh(w_1 x); vector_k = unit(f(attn_k^T x)), f(m) = fc(m) + MLP(m).
    Weighing comes before projecting, so a wide MLP costs K rows per item, and K vectors have hardly more weights than
    one: made for frozen networks and few pictures. `dropout` is of what was read and of the MLP's hidden units. The
    global feature is not used. k = 1 is its single-vector twin.
    """

    needs_global = False
    works_on_tokens = False
    projects = True

    def __init__(
        self,
        dim: PositiveInt,
        k: PositiveInt = 4,
        input_dim: PositiveInt | None = None,
        hidden: PositiveInt = 1024,
        attention: PositiveInt = 64,
        dropout: Dropout = 0.0,
    ) -> None:
        width = input_dim or dim
        super().__init__(dim, k, width)
        self.w_1 = nn.Linear(width, attention)
        self.w_2 = nn.Linear(attention, k)
        self.fc = nn.Linear(width, dim)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), dropped.Dropout(dropout), nn.Linear(hidden, dim, bias=False)
        )
        self.dropout = dropped.Dropout(dropout)

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        clean = features.zero_padded()
        logits = self.w_2(torch.tanh(self.w_1(clean.values))).transpose(1, 2)
        attention = masked_ops.softmax(logits, clean.mask[:, None], dim=-1)
        read = self.dropout(attention @ clean.values)
        residual = self.fc(read) + self.mlp(read)
        return SetPrediction(masked_ops.unit(residual), attention, residual)
