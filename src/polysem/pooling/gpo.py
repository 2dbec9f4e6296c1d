"""Poolings with learned weights on sorted values: VSE∞'s GPO, its coefficient generators, and its ancestor FSPool."""

from __future__ import annotations

import math
from typing import Annotated, Literal, cast

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from polysem import masked_ops
from polysem.encoders.cpu import fast_gru
from polysem.errors import InputError
from polysem.features import LocalFeatures
from polysem.pooling.base import Pooling, registry, scatter_to_tokens


def interpolate(knots: Tensor, lengths: Tensor, padded: int) -> Tensor:
    """(M, D) knots, (S,) -> (S, padded, D): their piecewise-linear curve at the relative rank of every sorted slot, for
    sets of these lengths (anything goes past the length)."""
    position = torch.arange(padded, device=lengths.device) / (lengths[:, None] - 1).clamp(min=1)
    position = position.clamp(max=1) * (len(knots) - 1)
    left = position.floor().long()
    share = (position - left)[..., None].to(knots.dtype)
    return (1 - share) * knots[left] + share * knots[(left + 1).clamp(max=len(knots) - 1)]


@registry.register("fspool")
class FSPool(Pooling):
    """Featurewise sort pooling: each dimension weights its sorted values by its own piecewise-linear curve.

    v_j = sum_k f_j(k / (n - 1)) u_kj, where u is sorted in descending order and f_j interpolates `pieces` + 1 learned
    knots. Nothing normalises the weights. The per-dimension ancestor of GPO.

    variant "official" keeps the released length-1 bug: in a padded batch such an item takes in the first padded slot
    with its contents, as a second value.
    """

    official_keys = {"weight": "knots"}

    def __init__(
        self, dim: PositiveInt, pieces: PositiveInt = 20, variant: Literal["paper", "official"] = "paper"
    ) -> None:
        super().__init__(dim)
        self.variant = variant
        self.knots = nn.Parameter(torch.randn(dim, pieces + 1))

    def prepare(self, features: LocalFeatures) -> tuple[Tensor, Tensor]:
        if self.variant == "paper":
            return super().prepare(features)
        second = torch.arange(features.mask.shape[1], device=features.mask.device) == 1
        return features.values, features.mask | (features.lengths == 1)[:, None] & second

    def pool(self, x: Tensor, mask: Tensor) -> Tensor:
        return (self._curves(mask) * masked_ops.sort_descending(x, mask)).sum(1)

    def weigh(self, x: Tensor, mask: Tensor) -> Tensor:
        return scatter_to_tokens(self._curves(mask), x, mask)

    def _curves(self, mask: Tensor) -> Tensor:
        if masked_ops.is_tracing():
            return interpolate(self.knots.t(), mask.sum(1), mask.shape[1])
        lengths, which = mask.sum(1).unique(return_inverse=True)
        return interpolate(self.knots.t(), lengths, mask.shape[1])[which]


def sinusoids(count: int, dim: int, device: torch.device) -> Tensor:
    """(count, dim) transformer positions 0, 1, …: sine in even columns, cosine in odd ones."""
    frequency = torch.exp(torch.arange(0, dim, 2, device=device) * (-math.log(10_000.0) / dim))
    angles = torch.arange(count, device=device)[:, None] * frequency
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class PositionInput(nn.Module):
    """What a generator reads: the position, as sinusoids or as a learned row, plus a view of the feature if asked."""

    def __init__(self, kind: str, dim: int, max_length: int, feature_dim: int | None) -> None:
        super().__init__()
        self.dim, self.max_length = dim, max_length
        self.table = nn.Embedding(max_length, dim) if kind == "index" else None
        self.feature = nn.Linear(feature_dim, dim) if feature_dim is not None else None

    def forward(self, lengths: Tensor, padded: int, ranked: Tensor | None) -> Tensor:
        """(S,), N, (S, N, D) or None -> (S, N, dim)."""
        if self.table is None:
            positions = sinusoids(padded, self.dim, lengths.device)
        else:
            # A traced graph's description says how far the table goes.
            longest = 0 if masked_ops.is_tracing() else int(lengths.max())
            if longest > self.max_length:
                raise InputError(
                    f"An item has {longest} tokens but GPO's learned position table ends at {self.max_length}. "
                    f"Build it with max_length={longest} or more, or with position='sincos'."
                )
            # Past the end of the table there can only be padding; any row serves.
            positions = self.table.weight[torch.arange(padded, device=lengths.device).clamp(max=self.max_length - 1)]
        positions = positions.expand(lengths.shape[0], -1, -1)
        return positions if self.feature is None or ranked is None else positions + self.feature(ranked)


class GRUGenerator(nn.Module):
    """VSE∞'s choice: a small bidirectional GRU reads the positions of the set, so each weight knows n."""

    def __init__(self, positions: PositionInput, d_hidden: int, outputs: int) -> None:
        super().__init__()
        self.positions = positions
        self.gru = nn.GRU(positions.dim, d_hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(d_hidden, outputs, bias=False)

    def forward(self, lengths: Tensor, padded: int, ranked: Tensor | None) -> Tensor:
        x = self.positions(lengths, padded, ranked).to(self.score.weight)
        if masked_ops.is_tracing():
            return cast(Tensor, self.score(fast_gru.run_padded(self.gru, x, lengths)[0]))
        if fast_gru.can_run(self.gru, x):
            packing = fast_gru.Packing(lengths)
            cells = packing.cells(padded)
            rows, _ = fast_gru.run(self.gru, x.flatten(0, 1).index_select(0, cells), packing)
            real: Tensor = self.score(rows)
            scores = real.new_zeros(len(lengths) * padded, real.shape[1])
            return scores.index_copy(0, cells, real).view(*x.shape[:2], -1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=padded)
        forward, backward = states.chunk(2, dim=-1)
        return cast(Tensor, self.score((forward + backward) / 2))


class MLPGenerator(nn.Module):
    """Each position on its own: blind to the length of the set."""

    def __init__(self, positions: PositionInput, d_hidden: int, outputs: int) -> None:
        super().__init__()
        self.positions = positions
        self.net = nn.Sequential(nn.Linear(positions.dim, d_hidden), nn.ReLU(), nn.Linear(d_hidden, outputs))

    def forward(self, lengths: Tensor, padded: int, ranked: Tensor | None) -> Tensor:
        return cast(Tensor, self.net(self.positions(lengths, padded, ranked).to(self.net[0].weight)))


class TransformerGenerator(nn.Module):
    """A one-layer transformer encoder over the positions in place of the GRU."""

    def __init__(self, positions: PositionInput, d_hidden: int, outputs: int) -> None:
        super().__init__()
        self.positions = positions
        heads = math.gcd(positions.dim, 4)
        self.layer = nn.TransformerEncoderLayer(
            positions.dim, heads, dim_feedforward=d_hidden, dropout=0.0, batch_first=True
        )
        self.score = nn.Linear(positions.dim, outputs, bias=False)

    def forward(self, lengths: Tensor, padded: int, ranked: Tensor | None) -> Tensor:
        x = self.positions(lengths, padded, ranked).to(self.score.weight)
        real = torch.arange(padded, device=lengths.device) < lengths[:, None]
        return cast(Tensor, self.score(masked_ops.encoder_layer(self.layer, x, real)))


class InterpolationGenerator(nn.Module):
    """FSPool's idea with shared weights: a learned curve, stretched linearly to the length of the set."""

    def __init__(self, knots: int, outputs: int) -> None:
        super().__init__()
        self.knots = nn.Parameter(torch.zeros(1, outputs, knots))

    def forward(self, lengths: Tensor, padded: int, ranked: Tensor | None) -> Tensor:
        if masked_ops.is_tracing():
            # Below, the curve is stretched to one length after the other.
            return interpolate(self.knots[0].t(), lengths, padded)
        curves = [
            F.pad(F.interpolate(self.knots, size=n, mode="linear", align_corners=True)[0].t(), (0, 0, 0, padded - n))
            for n in lengths.tolist()
        ]
        return torch.stack(curves)


_GENERATORS = {"bigru": GRUGenerator, "mlp": MLPGenerator, "transformer": TransformerGenerator}
_CACHE_VALUES = 1 << 22
"""Coefficients to remember at the most, about 16 MB; with more, the memory starts afresh."""


class CoefficientCache:
    """Coefficients already made, by length, and the weights that made them. Not used while gradients are wanted.

    The weights are compared by value: fused optimisers change them without a trace (no version count, no new address).
    Copies and pickles of a part start without memory.
    """

    def __init__(self) -> None:
        self._weights: Tensor | None = None
        self._theta: dict[int, Tensor] = {}

    def __reduce__(self) -> tuple[type[CoefficientCache], tuple[()]]:
        return CoefficientCache, ()

    def get(self, generator: nn.Module, lengths: Tensor, padded: int) -> Tensor | None:
        """(S, padded, outputs) if every length is known, else None."""
        if torch.is_grad_enabled() or not self._made_by(generator):
            return None
        known = [self._theta.get(n) for n in lengths.tolist()]
        rows = [F.pad(theta, (0, 0, 0, padded - len(theta))) for theta in known if theta is not None]
        return torch.stack(rows) if len(rows) == len(known) else None

    def store(self, generator: nn.Module, lengths: Tensor, theta: Tensor) -> None:
        if torch.is_grad_enabled():
            return
        held = sum(row.numel() for row in self._theta.values())
        if held > _CACHE_VALUES or not self._made_by(generator):
            self._weights, self._theta = parameters_to_vector(generator.parameters()), {}
        self._theta.update({n: row[:n].clone() for n, row in zip(lengths.tolist(), theta, strict=True)})

    def _made_by(self, generator: nn.Module) -> bool:
        now, then = parameters_to_vector(generator.parameters()), self._weights
        return then is not None and (now.device, now.dtype) == (then.device, then.dtype) and torch.equal(now, then)


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
        outputs = dim if per_dimension and dim else 1
        if generator == "interpolation":
            self.generator: nn.Module = InterpolationGenerator(knots, outputs)
        else:
            positions = PositionInput(position, d_pe, max_length, dim if feature_input else None)
            self.generator = _GENERATORS[generator](positions, d_hidden, outputs)
        self.feature_input = feature_input
        self._cache = CoefficientCache()

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
        clean = features.zero_padding()
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
