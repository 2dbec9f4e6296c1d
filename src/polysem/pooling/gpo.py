from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from polysem import masked_ops
from polysem.features import LocalFeatures
from polysem.pooling import coefficients
from polysem.pooling.base import Pooling, registry, scatter_to_tokens


@registry.register("gpo")
class GPO(Pooling):
    """Generalised pooling operator of VSE∞: learned weights for the sorted values of each dimension.

    v_j = sum_k theta_k u_kj with u sorted in descending order and theta = softmax(g(k, n) / temperature) over the
    n real positions. Mean, max and k-max are special cases that it can learn. theta depends on the length alone, so it
    is made once per distinct length of a batch and, outside training, remembered.

    The paper's ablations: `generator` (bigru | mlp | transformer | interpolation), `position` (sincos | index),
    `per_dimension` weights (one theta for each dimension) and `feature_input` (g also sees the sorted features).

    variant "official" sorts padding at -10,000 as the released code does: features below that sink under the padding.
    """

    official_keys = {
        "linear.weight": "generator.score.weight",
        **{
            f"gru.{kind}_{part}_l0{way}": f"generator.gru.{kind}_{part}_l0{way}"
            for kind in ("weight", "bias")
            for part in ("ih", "hh")
            for way in ("", "_reverse")
        },
    }

    def __init__(
        self,
        dim: PositiveInt | None = None,
        generator: Literal["bigru", "mlp", "transformer", "interpolation"] = "bigru",
        position: Literal["sincos", "index"] = "sincos",
        per_dimension: bool = False,
        feature_input: bool = False,
        temperature: PositiveFloat = 0.1,
        d_pe: Annotated[int, Field(gt=0, multiple_of=2)] = 32,
        d_hidden: PositiveInt = 32,
        max_length: PositiveInt = 512,
        knots: Annotated[int, Field(ge=2)] = 20,
        variant: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__(dim)
        if (per_dimension or feature_input) and dim is None:
            self.reject_knobs("per_dimension and feature_input need to know the feature width: give dim.")
        if generator == "interpolation" and (feature_input or position == "index"):
            self.reject_knobs("the interpolation generator has no input: leave out feature_input and position='index'.")
        self.temperature, self.variant = temperature, variant
        self.generator = coefficients.build_generator(
            generator,
            outputs=dim if per_dimension and dim else 1,
            position=position,
            feature_dim=dim if feature_input else None,
            d_pe=d_pe,
            d_hidden=d_hidden,
            max_length=max_length,
            knots=knots,
        )
        self.feature_input = feature_input
        self._cache = coefficients.CoefficientCache()

    @property
    def max_tokens(self) -> int:
        return int(self.config["max_length"])

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        ranked = masked_ops.sort_descending(x, mask, self._sentinel)
        theta = self._theta(ranked, mask)
        if theta.shape[-1] == 1:
            return (theta.transpose(1, 2) @ ranked).squeeze(1)
        return (theta * ranked).sum(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        ranked = masked_ops.sort_descending(x, mask, self._sentinel)
        return scatter_to_tokens(self._theta(ranked, mask), x, mask, self._sentinel)

    @property
    def _sentinel(self) -> float:
        """What stands in for padding while values are sorted."""
        return float("-inf") if self.variant == "paper" else -1e4

    def coefficients(self, features: LocalFeatures) -> Tensor:
        """theta: (B, N) weights of the sorted values, 0 past an item's length; (B, N, D) if `per_dimension`."""
        features.check(self.dim)
        clean = features.zero_padded()
        theta = self._theta(masked_ops.sort_descending(clean.values, clean.mask), clean.mask)
        return theta.squeeze(-1) if theta.shape[-1] == 1 else theta

    def _theta(self, ranked: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D) sorted values, (B, N) -> (B, N, 1 or D)."""
        lengths = mask.sum(1)
        if self.feature_input or masked_ops.is_tracing():
            return self._softmax(self.generator(lengths, mask.shape[1], ranked), lengths).to(ranked.dtype)
        distinct, which = lengths.unique(return_inverse=True)
        theta = self._cache.get(self.generator, distinct, mask.shape[1])
        if theta is None:
            # In full precision always: what is remembered must not depend on the first caller's autocast.
            with torch.autocast(mask.device.type, enabled=False):
                theta = self._softmax(self.generator(distinct, mask.shape[1], None), distinct)
            self._cache.store(self.generator, distinct, theta)
        return theta[which].to(ranked.dtype)

    def _softmax(self, scores: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(scores.shape[1], device=scores.device) < lengths[:, None]
        return masked_ops.softmax(scores / self.temperature, real[..., None], dim=1)
