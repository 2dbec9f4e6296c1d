"""Poolings that weight values by a softmax over the tokens: SoftPool, AdaPool, LIP and VSE+2AD's AdPool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.pooling.base import Pooling, registry, scatter_to_tokens


def pool_by_softmax(x: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """sum_i x_i e^l_i / sum_i e^l_i per dimension. (B, N, D), (B, N, D), (B, N) -> (B, D)."""
    return (masked_ops.softmax(logits, mask[..., None], dim=1) * x).sum(1)


@registry.register("softpool")
class SoftPool(Pooling):
    """A soft maximum per dimension: values weighted by their own softmax. AdPool's embedding level alone.

    variant "official" follows the released CPU path, which is another function: one weight per token, the sum of the
    exponentials over all dimensions, and an output clamped at 0.
    """

    def __init__(self, dim: PositiveInt | None = None, variant: Literal["paper", "official"] = "paper") -> None:
        super().__init__(dim)
        self.variant = variant

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self.weigh(x, mask) * x).sum(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.variant == "paper":
            return masked_ops.softmax(x, mask[..., None], dim=1)
        weights = masked_ops.softmax(x.logsumexp(-1), mask, dim=1)[..., None]
        return weights * ((weights * x).sum(1, keepdim=True) > 0)  # what is clamped has no weight


def dice_similarity(a: Tensor, b: Tensor) -> Tensor:
    """2|ab| / (a^2 + b^2), elementwise; 0 where both are 0."""
    denominator = a.square() + b.square()
    return 2 * (a * b).abs() / torch.where(denominator > 0, denominator, 1.0)


@registry.register("adapool")
class AdaPool(Pooling):
    """Exponential adaptive pooling: a learned mix of a soft maximum and of the values most like the mean.

    v = beta * sum_i softmax_i(dsc(x_i, mean)) x_i + (1 - beta) * softpool(x), with one scalar beta for the whole set.
    The released code clamps beta to [0, 1] when it starts but not while it trains; here it stays there.
    """

    official_keys = {"beta": "beta"}

    def __init__(self, dim: PositiveInt | None = None) -> None:
        super().__init__(dim)
        self.beta = nn.Parameter(torch.randn(1).clamp(0, 1))

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        centre = masked_ops.mean(x, mask)[:, None]
        typical = pool_by_softmax(x, dice_similarity(x, centre), mask)
        if self.training:
            # In place: a clamp in the graph would hold a beta that has left [0, 1] there for good, without gradient.
            # Of the data: a batch may be pooled in groups, and the graph of the first must stay valid in the second.
            self.beta.data.clamp_(0, 1)
        beta = self.beta.clamp(0, 1)
        return beta * typical + (1 - beta) * pool_by_softmax(x, x, mask)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        centre, real, beta = masked_ops.mean(x, mask)[:, None], mask[..., None], self.beta.clamp(0, 1)
        typical = masked_ops.softmax(dice_similarity(x, centre), real, dim=1)
        return beta * typical + (1 - beta) * masked_ops.softmax(x, real, dim=1)


def gate(raw: Tensor, scale: float) -> Tensor:
    """LIP's soft gate: a logit between 0 and `scale`."""
    return scale * torch.sigmoid(raw)


@registry.register("lip")
class LIP(Pooling):
    """Local importance pooling: a small network rates each value, and the ratings weight the average.

    l = scale * sigmoid(InstanceNorm(W x)), v = sum_i x_i e^l_i / sum_i e^l_i. The released logit network is
    convolutional; over a set of tokens it is the same with 1x1 kernels. W starts at 0, so LIP starts as the mean.
    """

    official_keys = {
        "logit.conv.weight": "logit.weight",
        "logit.bn.weight": "norm_scale",
        "logit.bn.bias": "norm_shift",
    }

    def __init__(self, dim: PositiveInt, scale: PositiveFloat = 12.0) -> None:
        super().__init__(dim)
        self.scale = scale
        self.logit = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.logit.weight)
        self.norm_scale = nn.Parameter(torch.ones(dim))
        self.norm_shift = nn.Parameter(torch.zeros(dim))

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self.weigh(x, mask) * x).sum(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        real = mask[..., None]
        raw = self.logit(x).masked_fill(~real, 0.0)
        # Instance norm: zero mean and unit variance over the real tokens of each item, per dimension.
        centred = (raw - masked_ops.mean(raw, mask)[:, None]).masked_fill(~real, 0.0)
        normed = centred * (masked_ops.mean(centred.square(), mask)[:, None] + 1e-5).rsqrt()
        return masked_ops.softmax(gate(self.norm_scale * normed + self.norm_shift, self.scale), real, dim=1)

    def translate_official(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = super().translate_official(state)
        weight = own.get("logit.weight")
        if weight is not None and weight.ndim > 2 and weight[0, 0].numel() == 1:
            own["logit.weight"] = weight.flatten(1)  # a 1x1 convolution is a linear map
        return own


@registry.register("adpool")
class AdPool(Pooling):
    """Adaptive pooling of VSE+2AD: learned weights on sorted tokens, a soft maximum, and a learned balance of both.

    token level      v_tok = sum_m softmax_m(l_m) u_m, u sorted in descending order per dimension
    embedding level  v_emb = softpool(x)
    balance          v = w_1 v_tok + w_2 v_emb, w = softmax([v_tok W, v_emb W])

    Each level and the balance can be switched off for the ablation; without the balance the two levels are averaged.

    variant: where the token logits l come from, and what padding does to them.
      corrected  l = ReLU(Linear(u)), a weight for each dimension as in the released code; padding has no weight
      paper      l = u W_tok, one scalar for each sorted token, as printed (Eq. 3); padding has no weight
      official   the released code: padded slots keep logit ReLU(bias), so the result depends on the padded length
    """

    official_keys = {name: name for name in ("linear.weight", "linear.bias", "balance.weight", "balance.bias")}

    def __init__(
        self,
        dim: PositiveInt,
        token_level: bool = True,
        embedding_level: bool = True,
        balance: bool = True,
        variant: Literal["corrected", "paper", "official"] = "corrected",
    ) -> None:
        super().__init__(dim)
        if not (token_level or embedding_level):
            self.reject_knobs("token_level and embedding_level are both off; nothing is left to pool with.")
        self.variant = variant
        self.token_level, self.embedding_level = token_level, embedding_level
        if token_level:
            self.linear = nn.Linear(dim, 1, bias=False) if variant == "paper" else nn.Linear(dim, dim)
            nn.init.xavier_uniform_(self.linear.weight)
            if self.linear.bias is not None:
                nn.init.zeros_(self.linear.bias)
        # The balance's bias is in the released state dict; it cancels in the softmax.
        both = token_level and embedding_level
        self.balance = nn.Linear(dim, 1, bias=variant != "paper") if balance and both else None

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        levels = self.levels(x, mask)
        return (self.level_weights(levels)[..., None] * levels).sum(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        weights = []
        if self.token_level:
            ranked = masked_ops.sort_descending(x, mask)
            weights.append(scatter_to_tokens(self.token_weights(ranked, mask), x, mask))
        if self.embedding_level:
            weights.append(masked_ops.softmax(x, mask[..., None], dim=1))
        balance = self.level_weights(self.levels(x, mask))
        return (balance[..., None, None] * torch.stack(weights, dim=1)).sum(1)

    def levels(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D) -> (B, 1 or 2, D): the token level, then the embedding level, as far as they are on."""
        pooled = []
        if self.token_level:
            ranked = masked_ops.sort_descending(x, mask)
            pooled.append((self.token_weights(ranked, mask) * ranked).sum(1))
        if self.embedding_level:
            pooled.append(pool_by_softmax(x, x, mask))
        return torch.stack(pooled, dim=1)

    def token_weights(self, ranked: Tensor, mask: Tensor) -> Tensor:
        """(B, N, D) sorted values -> (B, N, D), or (B, N, 1) in the paper's form: weights that sum to 1 over tokens."""
        logits: Tensor = self.linear(ranked)
        if self.variant != "paper":
            logits = logits.relu()
        if self.variant == "official":
            return logits.softmax(1)
        return masked_ops.softmax(logits, masked_ops.ranks(mask)[..., None], dim=1)

    def level_weights(self, levels: Tensor) -> Tensor:
        """(B, L, D) -> (B, L), summing to 1."""
        if self.balance is None:
            return levels.new_full(levels.shape[:2], 1 / levels.shape[1])
        logits: Tensor = self.balance(levels)
        return logits.squeeze(-1).softmax(1)
