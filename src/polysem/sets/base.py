"""Base class of set predictors: local features and a global feature in, K unit vectors per item out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from polysem import masked_ops
from polysem.errors import InputError
from polysem.features import LocalFeatures, require_features
from polysem.masked_ops import is_tracing
from polysem.registry import Part, Registry

registry: Registry[SetPredictor] = Registry("set predictor")


@dataclass(frozen=True, eq=False)
class SetPrediction:
    """An embedding set with its attention and intermediate values.

    vectors: (B, K, D) unit vectors, the embedding.
    attention: (B, K, N) what each element took from each token (mean over heads, last iteration); 0 at padding.
    residual: (B, K, D) the elements before the global feature joined them, not normalised: what regularisers spread. An
      element that is the global vector itself has none.
    attention_steps: (T, B, H, K, N) the same for every iteration and head, where the predictor iterates.
    logits: (B, C) of each class, where the predictor classifies: see `probabilities`.
    states: (B, N, input_dim) of each token, where the predictor has an encoder of its own.
    global_vector: (B, D) unit vector of the whole item, which the elements share, where the predictor has one.
    """

    vectors: Tensor
    attention: Tensor | None
    residual: Tensor
    attention_steps: Tensor | None = None
    logits: Tensor | None = None
    states: Tensor | None = None
    global_vector: Tensor | None = None


@dataclass(frozen=True, eq=False)
class TokenSum:
    """A vector as the sum of what each token adds to it; 0 at padding.

    terms: (B, N, D) the summands of the vector before it is scaled to unit length.
    shares: (B, N) the share of each token in the coefficients, mean over dimensions; sums to 1.
    """

    terms: Tensor
    shares: Tensor


@dataclass(frozen=True, eq=False)
class WeightedTokens:
    """A weighted sum of the tokens for each of K vectors: sum_n coefficients_kn values_n.

    coefficients: (B, K, N); 0 at padding. values: (B, N, D).
    """

    coefficients: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class SetSum:
    """The vectors of a set as exact sums over the tokens: vector_k = the weighted sums of all `parts` + remainder_k.

    remainder: (B, K, D) what belongs to no token, such as a bias.
    """

    parts: tuple[WeightedTokens, ...]
    remainder: Tensor

    @property
    def vectors(self) -> Tensor:
        """(B, K, D): the sums."""
        return sum((part.coefficients @ part.values for part in self.parts), self.remainder)

    def center(self, counted: Tensor) -> SetSum:
        """The same vectors as sums of what sets each token apart from the mean of the `counted` ones, (B, N) bool.

        What all tokens have in common goes to the remainder: it says nothing about where.
        """
        share = (counted / counted.sum(1, keepdim=True).clamp(min=1))[:, None].to(self.remainder)  # (B, 1, N)
        parts, remainder = [], self.remainder
        for part in self.parts:
            mean = share @ part.values
            parts.append(WeightedTokens(part.coefficients, part.values - mean))
            remainder = remainder + part.coefficients.sum(-1, keepdim=True) * mean
        return SetSum(tuple(parts), remainder)

    def project(self, directions: Tensor) -> Tensor:
        """(B, K, N, L): what each token adds to the inner product of each vector with the directions (L, D)."""
        first, *rest = (part.coefficients[..., None] * (part.values @ directions.t())[:, None] for part in self.parts)
        return sum(rest, first)


def share_tokens(attention: Tensor) -> Tensor:
    """(B, K, N) what each element took -> shares that sum to 1 over the tokens, also where the elements compete."""
    return attention / attention.sum(-1, keepdim=True).clamp(min=torch.finfo(attention.dtype).tiny)


def add_residual(global_feature: Tensor, residual: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Elements that begin at the global vector: unit(unit(global) + gamma unit(residual_k)), and unit(global).

    Args:
        global_feature: (B, D), of any length.
        residual: (B, K, D), of any length.
        gamma: how far an element is from the global vector; with 0 all equal it.

    Returns:
        The vectors (B, K, D) and the global vector (B, D).
    """
    center = masked_ops.normalise(global_feature)
    return masked_ops.normalise(center[:, None] + gamma * masked_ops.normalise(residual)), center


class SetPredictor(Part):
    """Maps `LocalFeatures` (B, N, input_dim) and a global feature (B, dim) to a `SetPrediction` of K vectors."""

    needs_global = True
    """Whether it takes a global feature of each item beside the local ones."""
    works_on_tokens = True
    """Whether most of its work is done token by token, so that padding costs as much as tokens do."""
    projects = False
    """Whether it maps tokens of any width to `dim` itself, so that an encoder before it keeps its own width."""
    classifies: ClassVar[bool] = False
    """Whether it predicts labels (its knob `labels`), as an objective of labels needs."""
    predicts_tokens: ClassVar[bool] = False
    """Whether it has a state for each token, as masked modelling needs."""
    elements_compete = False
    """Whether its elements share out each token among them, so that attention sums to 1 over the elements."""
    cells: int | None = None
    """How many tokens an item has, where each has a place in a fixed grid that the predictor knows."""
    labels: tuple[str, ...] | None = None
    """The names of the classes, where it classifies."""
    dimensions: tuple[str, ...] | None = None
    """What each dimension of its vectors stands for, where that has a name."""

    @classmethod
    def set_size(cls, knobs: Mapping[str, Any]) -> int:
        """How many vectors of an item a predictor with these knobs makes: `k`, and 1 where there is no such knob."""
        return int(cls.knob(knobs, "k", 1))

    @classmethod
    def adds_global(cls, knobs: Mapping[str, Any]) -> bool:
        """Whether a predictor with these knobs needs a global feature."""
        return cls.needs_global and bool(cls.knob(knobs, "add_global", True))

    @classmethod
    def makes_global_vector(cls, knobs: Mapping[str, Any]) -> bool:  # noqa: ARG003
        """Whether predictions of a predictor with these knobs have a `global_vector`."""
        return False

    @classmethod
    def dimensions_are_labels(cls, knobs: Mapping[str, Any]) -> bool:  # noqa: ARG003
        """Whether a vector of a predictor with these knobs has one dimension for each label."""
        return False

    def __init__(self, dim: PositiveInt, k: PositiveInt, input_dim: PositiveInt | None) -> None:
        super().__init__()
        self.dim, self.k, self.input_dim = dim, k, input_dim

    def forward(self, features: LocalFeatures, global_feature: Tensor | None = None) -> SetPrediction:
        if is_tracing():
            return self.predict(features, global_feature)
        require_features(features, self).check(self.input_dim)
        shape, needs = (len(features), self.dim), f"{type(self).__name__} needs a global feature of shape"
        if self.needs_global and global_feature is None:
            raise InputError(f"{needs} {shape} (items, dim); none was given.")
        if global_feature is not None and global_feature.shape != shape:
            raise InputError(f"{needs} {shape} (items, dim), got {tuple(global_feature.shape)}.")
        return self.predict(features, global_feature)

    @abstractmethod
    def predict(self, features: LocalFeatures, global_feature: Tensor | None) -> SetPrediction:
        """The prediction for checked inputs."""

    def token_shares(self, prediction: SetPrediction) -> Tensor | None:
        """(T, B, K, N): the share of each token in what an element read, at each of T iterations, mean over heads.

        Sums to 1 over the tokens. None where the elements have no attention.
        """
        return None if prediction.attention is None else prediction.attention[None]

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, C) logits of a prediction -> the probability of each class."""
        return logits.sigmoid()

    def initialise_frequencies(self, frequencies: Tensor) -> None:
        """Start an untrained classifier at the class frequencies (C,) of the training items: labels are rare."""

    def as_sum(self, features: LocalFeatures) -> TokenSum | None:
        """The only vector of a set as a sum over the tokens; None where it is not one."""
        return None

    def as_set_sum(self, features: LocalFeatures, global_feature: Tensor | None = None) -> SetSum | None:
        """Every vector of a set as a sum over the tokens, the weights that made it taken as they are; None where the
        vectors are not such sums, e.g. behind an MLP. In evaluation mode."""
        single = self.as_sum(features) if self.k == 1 else None
        if single is None:
            return None
        vectors, total = self.predict(features, global_feature).vectors, single.terms.sum(1, keepdim=True)
        scale = vectors.norm(dim=-1) / total.norm(dim=-1).clamp(min=masked_ops.UNIT_EPS)
        coefficients = (features.mask * scale).to(vectors.dtype)[:, None]
        return SetSum((WeightedTokens(coefficients, single.terms),), torch.zeros_like(vectors))
