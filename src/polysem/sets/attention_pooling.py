from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.dropout import Dropout
from polysem.features import LocalFeatures
from polysem.sets.base import Rate, SetPrediction, SetPredictor, registry


@registry.register("attention_pooling", stored_as="readings")
class AttentionPooling(SetPredictor):
    """Attention pooling with K heads: K weighted means of the tokens, all projected by the same map.

    attn = softmax over tokens of w_2 tanh(w_1 x); vector_k = unit(f(attn_k^T x)), f(m) = fc(m) + MLP(m).
    Weighting comes before projecting, so a wide MLP costs K rows per item, and K vectors have hardly more weights than
    one. When to use it: over frozen encoders and with few training pictures; k = 1 is the single-vector model to
    compare with. `dropout` is of the weighted means and of the MLP's hidden units. The global feature is not used.
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
        dropout: Rate = 0.0,
    ) -> None:
        width = input_dim or dim
        super().__init__(dim, k, width)
        self.w_1 = nn.Linear(width, attention)
        self.w_2 = nn.Linear(attention, k)
        self.fc = nn.Linear(width, dim)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), Dropout(dropout), nn.Linear(hidden, dim, bias=False)
        )
        self.dropout = Dropout(dropout)

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        clean = features.zero_padded()
        logits = self.w_2(torch.tanh(self.w_1(clean.values))).transpose(1, 2)
        attention = masked_ops.softmax(logits, clean.mask[:, None], dim=-1)
        means = self.dropout(attention @ clean.values)
        residual = self.fc(means) + self.mlp(means)
        return SetPrediction(masked_ops.unit(residual), attention, residual)
