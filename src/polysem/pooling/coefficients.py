"""GPO's coefficient generators: from a position k in a set of n sorted values to an unnormalised weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polysem.encoders import fast_gru
from polysem.errors import InputError
from polysem.masked_ops import encoder_layer, is_tracing


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
            longest = 0 if is_tracing() else int(lengths.max())
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
        if is_tracing():
            traced_scores: Tensor = self.score(fast_gru.run_padded(self.gru, x, lengths)[0])
            return traced_scores
        if fast_gru.suits(self.gru, x):
            packing = fast_gru.Packing(lengths)
            cells = packing.cells(padded)
            rows, _ = fast_gru.run(self.gru, x.flatten(0, 1).index_select(0, cells), packing)
            real: Tensor = self.score(rows)
            return (
                real.new_zeros(len(lengths) * padded, real.shape[1]).index_copy(0, cells, real).view(*x.shape[:2], -1)
            )
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=padded)
        forward, backward = states.chunk(2, dim=-1)
        padded_scores: Tensor = self.score((forward + backward) / 2)
        return padded_scores


class MLPGenerator(nn.Module):
    """Each position on its own: blind to the length of the set."""

    def __init__(self, positions: PositionInput, d_hidden: int, outputs: int) -> None:
        super().__init__()
        self.positions = positions
        self.net = nn.Sequential(nn.Linear(positions.dim, d_hidden), nn.ReLU(), nn.Linear(d_hidden, outputs))

    def forward(self, lengths: Tensor, padded: int, ranked: Tensor | None) -> Tensor:
        scores: Tensor = self.net(self.positions(lengths, padded, ranked).to(self.net[0].weight))
        return scores


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
        scores: Tensor = self.score(encoder_layer(self.layer, x, real))
        return scores


class InterpolationGenerator(nn.Module):
    """FSPool's idea with shared weights: a learned curve, stretched linearly to the length of the set."""

    def __init__(self, knots: int, outputs: int) -> None:
        super().__init__()
        self.knots = nn.Parameter(torch.zeros(1, outputs, knots))

    def forward(self, lengths: Tensor, padded: int, ranked: Tensor | None) -> Tensor:
        if is_tracing():
            # The curve at each rank's share of the way, where below it is stretched to one length after the other.
            knots = self.knots[0].t()
            position = torch.arange(padded, device=lengths.device) / (lengths[:, None] - 1).clamp(min=1)
            position = position.clamp(max=1) * (len(knots) - 1)
            left = position.floor().long()
            share = (position - left)[..., None]
            return (1 - share) * knots[left] + share * knots[(left + 1).clamp(max=len(knots) - 1)]
        curves = [
            F.pad(F.interpolate(self.knots, size=n, mode="linear", align_corners=True)[0].t(), (0, 0, 0, padded - n))
            for n in lengths.tolist()
        ]
        return torch.stack(curves)


def build_generator(
    generator: str,
    *,
    outputs: int,
    position: str,
    feature_dim: int | None,
    d_pe: int,
    d_hidden: int,
    max_length: int,
    knots: int,
) -> nn.Module:
    """The generator of that name: (lengths (S,), padded N, ranked (S, N, D) or None) -> scores (S, N, outputs)."""
    if generator == "interpolation":
        return InterpolationGenerator(knots, outputs)
    positions = PositionInput(position, d_pe, max_length, feature_dim)
    return {"bigru": GRUGenerator, "mlp": MLPGenerator, "transformer": TransformerGenerator}[generator](
        positions, d_hidden, outputs
    )


_CACHE_VALUES = 1 << 22
"""Coefficients to remember at the most, about 16 MB; with more, the memory starts afresh."""


class CoefficientCache:
    """Coefficients already made, by length, and the weights that made them. Not used while gradients are wanted.

    The weights are compared by value: fused optimisers change them without a trace (no version count, no new address).
    Copies and pickles of a part start without memory.
    """

    def __init__(self) -> None:
        self._weights: list[Tensor] = []
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
            self._weights, self._theta = [p.detach().clone() for p in generator.parameters()], {}
        self._theta.update({n: row[:n].clone() for n, row in zip(lengths.tolist(), theta, strict=True)})

    def _made_by(self, generator: nn.Module) -> bool:
        weights = list(generator.parameters())
        return len(weights) == len(self._weights) and all(
            (now.device, now.dtype) == (then.device, then.dtype) and torch.equal(now, then)
            for now, then in zip(weights, self._weights, strict=True)
        )
