"""Competing readings: K weighted means of the tokens, each a residual around one global vector of the item."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from polysem import masked_ops
from polysem.dropout import Dropout, Rate
from polysem.errors import ConfigError, InputError
from polysem.features import LocalFeatures
from polysem.sets.base import SetPrediction, SetPredictor, SetSum, WeightedTokens, add_residual, registry, share_tokens


@registry.register("competing_readings")
class CompetingReadings(SetPredictor):
    """K readings of the tokens that compete for them, each a step away from one global vector.

    logits_kn = w_2k tanh(w_1 x_n) + P[k, n]; softmax over the elements k, then normalised over the tokens n: a_kn;
    r_k = sum_n a_kn x_n; vector_k = unit(unit(g) + gamma unit(h(r_k))). With gamma = 0 every vector is g's.

    When to use it: for pictures with several things in them, over frozen encoders, with one vector on the text's side
    and similarity soft_maximum; k = 1 is the single-vector model to compare with.

    base: the set predictor that makes g, with k = 1, e.g. {"name": "single", "pooling": "gpo"}, or
      {"name": "global_feature"} for a dual encoder's own embedding; by default a linear map of the mean of the tokens.
      One that cannot change the width of its tokens is followed by a linear map where `input_dim` is not `dim`.
    cells: how many tokens the fixed grid of an image has: each gets a learned bias P for each element. None: no bias,
      as for texts.
    competition: whether the elements share out each token. Without, or with k = 1, weights are a softmax over tokens.
    hidden: of w_1. head: h, linear or with a small MLP beside it. dropout: of what is read, and of the default base's
      mean.
    keep_global: the global vector itself is one more element, the last.
    reads: how many numbers of a token the elements read, its first ones; the base reads all. For patches with the class
      token beside them (encoder patch, cls: beside): the width of a patch, so that an element says what is at its
      place and the global vector what the picture is. None: all.
    local: the start of P where an element is at home: the grid is divided among the elements, in blocks where both are
      square numbers. With 6 and as many elements as cells each begins as its own cell. None: P starts at 0.
    """

    added_knobs = frozenset({"local", "reads"})

    works_on_tokens = False
    projects = True

    def __init__(
        self,
        dim: PositiveInt,
        k: PositiveInt = 8,
        input_dim: PositiveInt | None = None,
        base: dict[str, Any] | None = None,
        cells: PositiveInt | None = None,
        competition: bool = True,
        hidden: PositiveInt = 64,
        head: Literal["linear", "mlp"] = "linear",
        dropout: Rate = 0.0,
        gamma: NonNegativeFloat = 0.5,
        learn_gamma: bool = True,
        keep_global: bool = False,
        local: NonNegativeFloat | None = None,
        reads: PositiveInt | None = None,
    ) -> None:
        width = input_dim or dim
        self.check_knobs({"base": base})
        super().__init__(dim, k + keep_global, width)
        self.cells, self.reads = cells, reads or width
        if self.reads > width:
            self.reject_knobs(f"reads={reads}: a token has {width} numbers.")
        self.keep_global, self.competes = keep_global, competition and k > 1
        # A global element beside them reads without competing.
        self.elements_compete = self.competes and not keep_global
        given: dict[str, Any] = base or {"name": "single", "pooling": "mean"}
        takes_width = any(knob.name == "input_dim" for knob in registry.describe(given["name"]).knobs)
        sizes = {"dim": dim, "input_dim": width} if takes_width else {"dim": width}
        self.base = registry.build(**{**sizes, **given})
        if self.base.k != 1:
            self.reject_knobs(f"base has to make one vector; {given} makes {self.base.k}.")
        mapped = base is None or self.base.dim != dim
        self.base_dropout = Dropout(dropout if base is None else 0.0)
        self.base_map = nn.Linear(self.base.dim, dim) if mapped else None
        self.needs_global = self.base.needs_global
        self.w_1 = nn.Linear(self.reads, hidden)
        self.w_2 = nn.Linear(hidden, k)
        if local is not None and (cells is None or k > cells):
            self.reject_knobs(f"local={local} divides a grid among {k} elements: give cells, at least as many.")
        homes = None if cells is None else F.one_hot(_divide_grid(cells, k), k).t().float()
        self.cell_bias = None if homes is None else nn.Parameter((local or 0.0) * homes)
        self.head = nn.Linear(self.reads, dim)
        layers = (nn.Linear(self.reads, 2 * dim), nn.GELU(), Dropout(dropout), nn.Linear(2 * dim, dim, bias=False))
        self.mlp = nn.Sequential(*layers) if head == "mlp" else None
        self.dropout = Dropout(dropout)
        self.gamma: Tensor
        if learn_gamma:
            self.gamma = nn.Parameter(torch.tensor([gamma]))
        else:
            self.register_buffer("gamma", torch.tensor([gamma]))

    @classmethod
    def check_knobs(cls, knobs: Mapping[str, Any]) -> None:
        base = knobs.get("base")
        if base is None:
            return
        if "name" not in base:
            raise ConfigError(f"competing_readings: base takes a set predictor with its name; got {base}.")
        registry.check(**base)
        if registry.find(base["name"]).set_size(base) != 1:
            raise ConfigError(f"competing_readings: base has to make one vector (k: 1); got {base}.")

    @classmethod
    def set_size(cls, knobs: Mapping[str, Any]) -> int:
        return int(cls.knob(knobs, "k")) + bool(cls.knob(knobs, "keep_global"))

    @classmethod
    def adds_global(cls, knobs: Mapping[str, Any]) -> bool:
        base = knobs.get("base")
        return base is not None and registry.find(base["name"]).adds_global(base)

    @classmethod
    def makes_global_vector(cls, knobs: Mapping[str, Any]) -> bool:  # noqa: ARG003
        return True

    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        clean = features.zero_padding()
        whole = self._summarise(features, global_feature)
        attention, shares = self._attend(clean)
        read = self.dropout(shares @ clean.values[..., : self.reads])
        residual = self.head(read) if self.mlp is None else self.head(read) + self.mlp(read)
        vectors, global_vector = add_residual(whole, residual, self.gamma)
        won = attention[None, :, None] if self.elements_compete else None
        if self.keep_global:
            evenly = (clean.mask / clean.mask.sum(1, keepdim=True))[:, None].to(attention.dtype)
            attention, vectors = torch.cat([attention, evenly], 1), torch.cat([vectors, global_vector[:, None]], 1)
        return SetPrediction(vectors, attention, residual, won, global_vector=global_vector)

    def token_shares(self, prediction: SetPrediction) -> Tensor | None:
        return None if prediction.attention is None else share_tokens(prediction.attention)[None]

    def as_set_sum(self, features: LocalFeatures, global_feature: Tensor | None = None) -> SetSum | None:
        if self.mlp is not None:
            return None  # h of a sum is not the sum of h
        clean, made = features.zero_padding(), self.predict(features, global_feature)
        shares = self._attend(clean)[1]  # (B, K, N)
        center, residual = made.global_vector, made.residual
        reach = self.gamma / residual.norm(dim=-1, keepdim=True).clamp(min=masked_ops.UNIT_EPS)  # (B, K, 1)
        length = (center[:, None] + reach * residual).norm(dim=-1, keepdim=True)  # type: ignore[index]
        step, whole = reach / length, 1 / length  # of h(r_k), and of the global vector, in vector_k
        if self.keep_global:
            step = torch.cat([step, torch.zeros_like(step[:, :1])], 1)
            whole = torch.cat([whole, torch.ones_like(whole[:, :1])], 1)
            shares = torch.cat([shares, torch.zeros_like(shares[:, :1])], 1)
        base = self._base_sum(features, global_feature)
        parts = [WeightedTokens(step * shares, F.linear(clean.values[..., : self.reads], self.head.weight))]
        parts += [WeightedTokens(whole * part.coefficients, part.values) for part in base.parts]
        return SetSum(tuple(parts), step * self.head.bias + whole * base.remainder)

    def _base_sum(self, features: LocalFeatures, global_feature: Tensor | None) -> SetSum:
        """The global vector, a unit vector, as a sum over the tokens; all of it remainder where it is none."""
        given = global_feature if self.base.needs_global else None
        if self.base_map is None:
            exact = self.base.as_set_sum(features, given)
        else:
            exact, terms = None, self.base.as_sum(features)
            if terms is not None:
                mapped = F.linear(terms.terms, self.base_map.weight)
                length = (mapped.sum(1) + self.base_map.bias).norm(dim=-1).clamp(min=masked_ops.UNIT_EPS)[:, None, None]
                coefficients = features.mask[:, None] / length
                exact = SetSum((WeightedTokens(coefficients, mapped),), self.base_map.bias / length)
        if exact is None:
            return SetSum((), masked_ops.normalise(self._summarise(features, global_feature))[:, None])
        return exact

    def _summarise(self, features: LocalFeatures, global_feature: Tensor | None) -> Tensor:
        """(B, dim) the global vector, of any length."""
        made: SetPrediction = self.base(features, global_feature if self.base.needs_global else None)
        if self.base_map is None:
            return made.vectors[:, 0]
        mapped: Tensor = self.base_map(self.base_dropout(made.residual[:, 0]))
        return mapped

    def _attend(self, features: LocalFeatures) -> tuple[Tensor, Tensor]:
        """(B, K, N) what each element took from each token, and the same as shares that sum to 1 over the tokens."""
        logits = self.w_2(torch.tanh(self.w_1(features.values[..., : self.reads]))).transpose(1, 2)
        if self.cell_bias is not None:
            tokens, cells = features.values.shape[1], self.cell_bias.shape[1]
            if not masked_ops.is_tracing() and tokens > cells:
                raise InputError(
                    f"competing_readings has a bias for each of {cells} cells; these items have {tokens} tokens. "
                    f"Build it with cells={tokens}, or with cells=None for tokens that are not a fixed grid."
                )
            logits = logits + self.cell_bias[:, :tokens]
        real = features.mask[:, None]
        if not self.competes:
            shares = masked_ops.softmax(logits, real, dim=-1)
            return shares, shares
        # Divided by the sum over the tokens in logarithms: an element that lost every token still reads something.
        logarithms = logits.log_softmax(1)
        attention = logarithms.exp().masked_fill(~real, 0.0)
        return attention, masked_ops.softmax(logarithms, real, dim=-1)


def _divide_grid(cells: int, k: int) -> Tensor:
    """(cells,): the element at home in each cell, row by row; square blocks where the numbers allow."""
    side, blocks = math.isqrt(cells), math.isqrt(k)
    if (side**2, blocks**2) != (cells, k):
        return torch.arange(cells) * k // cells
    block = torch.arange(side) * blocks // side
    return (block[:, None] * blocks + block).flatten()
