"""AdPool of VSE+2AD: a pooling of tokens and one of values, in a learned balance."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import masked_ops
from polysem.pooling.base import Pooling, registry, scatter_to_tokens
from polysem.pooling.softmax_pooling import pool_by_softmax


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
