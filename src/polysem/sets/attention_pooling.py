"""Attention heads over the tokens: K weighted means (attention pooling), and PVSE's polysemous network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.dropout import Dropout, Rate
from polysem.features import LocalFeatures
from polysem.sets.base import SetPrediction, SetPredictor, add_residual, registry


def _attend(features: LocalFeatures, w_1: nn.Module, w_2: nn.Module) -> tuple[Tensor, Tensor]:
    """Attention (B, K, N) = softmax over tokens of w_2 tanh(w_1 x), and the weighted means (B, K, D) of the tokens."""
    clean = features.zero_padding()
    logits = w_2(torch.tanh(w_1(clean.values))).transpose(1, 2)
    attention = masked_ops.softmax(logits, clean.mask[:, None], dim=-1)
    return attention, attention @ clean.values


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
        layers = nn.Linear(width, hidden), nn.GELU(), Dropout(dropout), nn.Linear(hidden, dim, bias=False)
        self.mlp = nn.Sequential(*layers)
        self.dropout = Dropout(dropout)

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        attention, means = _attend(features, self.w_1, self.w_2)
        means = self.dropout(means)
        residual = self.fc(means) + self.mlp(means)
        return SetPrediction(masked_ops.normalise(residual), attention, residual)


@registry.register("pie_net")
class PIENet(SetPredictor):
    """PVSE's polysemous network: K attention heads over the tokens, each added to the global feature.

    attn = softmax over tokens of w_2 tanh(w_1 x); r = sigmoid(fc(attn^T x)); vectors = LayerNorm(global + r).
    Heads do not compete: without a diversity loss they tend to say the same.

    gamma: None is as above and in the paper. A number is the start of a learned one in
    unit(unit(global) + gamma unit(fc(attn^T x))): elements begin near the global vector. Without a layer norm to
    take it off, the mean of the sigmoid would be one direction that all vectors share, so there is none.
    """

    added_knobs = frozenset({"gamma"})

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
        gamma: NonNegativeFloat | None = None,
    ) -> None:
        width = input_dim or dim
        super().__init__(dim, k, width)
        hidden = hidden or max(1, width // 2)
        self.w_1 = nn.Linear(width, hidden, bias=False)
        self.w_2 = nn.Linear(hidden, k, bias=False)
        self.fc = nn.Linear(width, dim)
        self.norm = nn.LayerNorm(dim) if gamma is None else None
        self.gamma = None if gamma is None else nn.Parameter(torch.tensor([gamma]))
        self.dropout = nn.Dropout(dropout)
        for weight in (self.w_1.weight, self.w_2.weight, self.fc.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.fc.bias)

    @classmethod
    def makes_global_vector(cls, knobs: Mapping[str, Any]) -> bool:
        return cls.adds_global(knobs)

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        attention, means = _attend(features, self.w_1, self.w_2)
        residual, whole = self.fc(means), cast(Tensor, global_feature)
        if self.norm is None:
            vectors, center = add_residual(whole, self.dropout(residual), cast(Tensor, self.gamma))
        else:
            residual = torch.sigmoid(residual)
            vectors = masked_ops.normalise(self.norm(self.dropout(residual) + whole[:, None]))
            center = masked_ops.normalise(whole)
        return SetPrediction(vectors, attention, residual, global_vector=center)
