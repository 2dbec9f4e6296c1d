"""The models and training steps of VSE∞, VSE+2AD and DivE written the way their released codes write them.

Our own plain restatement of behaviour that the methods notes record, for `training.py` to measure against:

- augmentation and collation handle one item after another, in Python, with small tensors;
- GPO packs the positional encodings of every item of every batch and runs its GRU over all of them;
- features are sorted along the middle axis;
- DivE projects its image features twice (for the local and for the global branch), and its slots read keys and values
  anew in every iteration;
- smooth-Chamfer pools a full matrix of element pairs, and MMD takes full distance matrices;
- AdamW updates one tensor after another.

Two defects are mended, because the comparison needs both sides to compute one function: padding gets no weight in
AdPool's and in the slots' attention, and sine positions are relative to a caption's own length. Each costs one cheap
operation. Tensors carry the released names, so that ours take them over with `load_official`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

MASK_ID, RATE = 3, 0.2


# ------------------------------------------------------------------------------------------------ data


@dataclass
class Batch:
    images: Tensor
    image_lengths: Tensor
    captions: Tensor
    lengths: list[int]
    order: list[int]
    """Captions come sorted by length; order[i] says which one the i-th was."""


def drop_regions(features: np.ndarray) -> np.ndarray:
    luck = np.random.rand(len(features))
    kept: np.ndarray = features[np.where(luck > RATE)]
    return kept


def mask_words(ids: Sequence[int], vocabulary_size: int) -> list[int]:
    kept = []
    for place, word in enumerate(ids):
        luck = random.random()
        if place in (0, len(ids) - 1) or luck >= RATE:
            kept.append(word)
            continue
        luck /= RATE
        if luck < 0.5:
            kept.append(MASK_ID)
        elif luck < 0.6:
            kept.append(random.randrange(vocabulary_size))
    return kept


def collate(images: Sequence[np.ndarray], captions: Sequence[Sequence[int]], vocabulary_size: int) -> Batch:
    """Augment (with a vocabulary; 0 leaves all as it is), pad and sort, an item at a time."""
    tensors = []
    for features in images:
        features = drop_regions(features) if vocabulary_size else features
        tensors.append(torch.Tensor(features))
    words = []
    for ids in captions:
        words.append(torch.Tensor(mask_words(ids, vocabulary_size) if vocabulary_size else list(ids)))
    image_lengths = [len(tensor) for tensor in tensors]
    padded = torch.zeros(len(tensors), max(image_lengths), tensors[0].size(-1))
    for i, tensor in enumerate(tensors):
        padded[i, : image_lengths[i]] = tensor
    order = sorted(range(len(words)), key=lambda i: len(words[i]), reverse=True)
    lengths = [len(words[i]) for i in order]
    targets = torch.zeros(len(words), max(lengths)).long()
    for row, i in enumerate(order):
        targets[row, : lengths[row]] = words[i]
    return Batch(padded, torch.Tensor(image_lengths), targets, lengths, order)


def valid(lengths: Tensor, longest: int) -> Tensor:
    return torch.arange(longest).expand(len(lengths), longest) < lengths.long().unsqueeze(1)


def l2norm(x: Tensor) -> Tensor:
    return x / (x.pow(2).sum(-1, keepdim=True).sqrt() + 1e-8)


# ------------------------------------------------------------------------------------------------ pooling


class GPO(nn.Module):
    def __init__(self, d_pe: int = 32, d_hidden: int = 32) -> None:
        super().__init__()
        self.d_pe = d_pe
        self.gru = nn.GRU(d_pe, d_hidden, 1, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(d_hidden, 1, bias=False)
        self.known: dict[int, Tensor] = {}

    def positions(self, count: int) -> Tensor:
        if count not in self.known:
            table = torch.zeros(count, self.d_pe)
            place = torch.arange(count).unsqueeze(1).float()
            frequency = torch.exp(torch.arange(0, self.d_pe, 2).float() * -(math.log(10_000.0) / self.d_pe))
            table[:, 0::2], table[:, 1::2] = torch.sin(place * frequency), torch.cos(place * frequency)
            self.known[count] = table
        return self.known[count]

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max())
        real = valid(lengths, longest).unsqueeze(-1)
        features = features[:, :longest]
        positions = self.positions(longest).unsqueeze(0).repeat(len(lengths), 1, 1)
        packed = pack_padded_sequence(positions, lengths.long(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        half = states.size(2) // 2
        scores = self.linear((states[:, :, :half] + states[:, :, half:]) / 2).masked_fill(~real, -10_000)
        weights = torch.softmax(scores / 0.1, 1)
        ranked = features.masked_fill(~real, -10_000).sort(dim=1, descending=True)[0].masked_fill(~real, 0)
        return (ranked * weights).sum(1)


class AdPool(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear, self.balance = nn.Linear(dim, dim), nn.Linear(dim, 1)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max())
        real = valid(lengths, longest).unsqueeze(-1)
        ranked = features[:, :longest].masked_fill(~real, -1000).sort(dim=1, descending=True)[0]
        embedding = (torch.softmax(ranked, 1) * ranked.masked_fill(~real, 0)).sum(1)
        ranked = ranked.masked_fill(~real, 0)
        weights = torch.softmax(F.relu(self.linear(ranked)).masked_fill(~real, -1e4), 1)
        token = (weights * ranked).sum(1)
        balance = torch.softmax(torch.cat([self.balance(token), self.balance(embedding)], 1), 1)
        return balance[:, 0:1] * token + balance[:, 1:2] * embedding


# ------------------------------------------------------------------------------------------------ encoders


class MLP(nn.Module):
    """VSE∞'s residual branch. (A batch norm of the output layer is made there too, and never used.)"""

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(input_dim, dim // 2), nn.Linear(dim // 2, dim)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(dim // 2)])

    def forward(self, x: Tensor) -> Tensor:
        items, tokens, width = x.size()
        rows = F.relu(self.bns[0](self.layers[0](x.reshape(items * tokens, width))))
        return self.layers[1](rows).view(items, tokens, -1)


class BatchNormOfTokens(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x.reshape(-1, x.size(-1))).view_as(x)


class DivEMLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(dim, dim // 2), BatchNormOfTokens(dim // 2), nn.Linear(dim // 2, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.bn(self.fc1(x))))


class RegionProjection(nn.Module):
    """VSE∞ and VSE+2AD: fc(x) + MLP(x)."""

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.fc, self.mlp = nn.Linear(input_dim, dim), MLP(input_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x) + self.fc(x)


class DivEProjection(nn.Module):
    """fc(x) + MLP(fc(x)), with dropout."""

    def __init__(self, input_dim: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.fc, self.mlp, self.dropout = nn.Linear(input_dim, dim), DivEMLP(dim), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.fc(x)
        return self.dropout(self.mlp(projected) + projected)


class WordGRU(nn.Module):
    def __init__(self, vocabulary_size: int, word_dim: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary_size, word_dim)
        self.rnn = nn.GRU(word_dim, dim, 1, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.embed.weight.data.uniform_(-0.1, 0.1)

    def forward(self, ids: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Words, states and the final state; directions averaged."""
        words = self.dropout(self.embed(ids))
        packed = pack_padded_sequence(words, lengths, batch_first=True)
        states, last = self.rnn(packed)
        states, _ = pad_packed_sequence(states, batch_first=True)
        half = states.size(2) // 2
        states = (states[:, :, :half] + states[:, :, half:]) / 2
        return words, self.dropout(states), self.dropout((last[0] + last[1]) / 2)


# ------------------------------------------------------------------------------------------------ DivE's sets


class Attention(nn.Module):
    def __init__(self, dim: int, input_dim: int, heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, head_dim**-0.5
        inner = heads * head_dim
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(input_dim, inner, bias=False)
        self.to_v = nn.Linear(input_dim, inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, slots: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
        q, k, v = self.to_q(slots), self.to_k(keys), self.to_v(values)
        q, k, v = (self.split(x) for x in (q, k, v))
        logits = torch.einsum("bid,bjd->bij", q, k) * self.scale
        mask = real.repeat_interleave(self.heads, 0).unsqueeze(1)
        attention = logits.softmax(1) * mask
        attention = attention / (attention.sum(-1, keepdim=True) + 1e-7)
        read = torch.einsum("bij,bjd->bid", attention, v)
        items = len(slots)
        return self.to_out(read.view(items, self.heads, *read.shape[1:]).transpose(1, 2).reshape(*slots.shape[:2], -1))

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2).reshape(len(x) * self.heads, x.shape[1], -1)


class PreNormAttention(nn.Module):
    def __init__(self, dim: int, input_dim: int, attention: Attention) -> None:
        super().__init__()
        self.fn, self.norm, self.norm_context = attention, nn.LayerNorm(dim), nn.LayerNorm(input_dim)

    def forward(self, slots: Tensor, context: Tensor, positions: Tensor | None, real: Tensor) -> Tensor:
        slots, context = self.norm(slots), self.norm_context(context)
        return self.fn(slots, context if positions is None else context + positions, context, real)


class Net(nn.Module):
    def __init__(self, dim: int, mult: int, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim * mult), nn.GELU(), nn.Dropout(dropout), nn.Linear(dim * mult, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class PreNormNet(nn.Module):
    def __init__(self, dim: int, net: Net) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), net

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.norm(x))


class AggregationBlock(nn.Module):
    def __init__(
        self, dim: int, input_dim: int, k: int, iterations: int, heads: int, head_dim: int, mult: int, dropout: float
    ) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(k, dim))
        attention = PreNormAttention(dim, input_dim, Attention(dim, input_dim, heads, head_dim, dropout))
        layer = nn.ModuleList([attention, nn.Identity(), PreNormNet(dim, Net(dim, mult, dropout)), nn.Identity()])
        self.layers = nn.ModuleList([layer for _ in range(iterations)])
        self.last_layer = nn.Sequential(nn.LayerNorm(dim))

    def forward(self, context: Tensor, positions: Tensor | None, real: Tensor) -> Tensor:
        slots = self.latents.unsqueeze(0).repeat(len(context), 1, 1)
        for layer in self.layers:
            attention, after_attention, net, after_net = layer
            slots = after_attention(attention(slots, context, positions, real) + slots)
            slots = after_net(net(slots) + slots)
        return self.last_layer(slots)


class SetPrediction(nn.Module):
    def __init__(self, dim: int, input_dim: int, sine: bool, **block: float) -> None:
        super().__init__()
        self.agg_block = AggregationBlock(dim, input_dim, **block)
        self.residual_norm, self.sine = nn.LayerNorm(dim), sine

    def forward(self, context: Tensor, global_feature: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        positions = self.positions(real, context.size(-1)) if self.sine else None
        residual = self.agg_block(context, positions, real)
        joined = residual + self.residual_norm(global_feature).unsqueeze(1).repeat(1, residual.size(1), 1)
        return F.normalize(joined, dim=-1), residual

    def positions(self, real: Tensor, dim: int) -> Tensor:
        place = real.float().cumsum(1) / (real.float().sum(1, keepdim=True) + 1e-6) * 2 * math.pi
        column = torch.arange(dim)
        angles = place.unsqueeze(-1) / 10_000 ** (2 * torch.div(column, 2, rounding_mode="floor") / dim)
        return torch.stack([angles[:, :, 0::2].sin(), angles[:, :, 1::2].cos()], dim=3).flatten(2)


# ------------------------------------------------------------------------------------------------ losses


def triplet(scores: Tensor, margin: float) -> Tensor:
    """VSE++: the hardest negative of every row and column, summed."""
    positive = scores.diag().view(-1, 1)
    to_text = (margin + scores - positive.expand_as(scores)).clamp(min=0)
    to_image = (margin + scores - positive.t().expand_as(scores)).clamp(min=0)
    diagonal = torch.eye(len(scores)) > 0.5
    to_text, to_image = to_text.masked_fill(diagonal, 0), to_image.masked_fill(diagonal, 0)
    return to_text.max(1)[0].sum() + to_image.max(0)[0].sum()


def adopt(scores: Tensor, margin: float = 0.2, temperature: float = 0.05, scale: float = 1.25) -> Tensor:
    """VSE+2AD: cross-entropy against the K hardest, K from alignment and uniformity."""

    def one_way(scores: Tensor) -> Tensor:
        eye = torch.eye(len(scores)) > 0.5
        align, uniform = scores.diag().mean(), torch.exp(-scores.masked_fill(eye, 0)).mean()
        k = min(max(int(math.cos((align + uniform).item() ** scale) * len(scores)) + 1, 1), len(scores) - 1)
        drawn = scores.masked_fill(eye, 0).sort(dim=1, descending=True)[1][:, :k]
        logits = torch.cat([scores.diag().unsqueeze(1), scores.gather(1, drawn) + margin], 1) / temperature
        return F.cross_entropy(logits, torch.zeros(len(scores), dtype=torch.long))

    return (one_way(scores) + one_way(scores.t())) / 2


def smooth_chamfer(images: Tensor, texts: Tensor, k: int, alpha: float) -> Tensor:
    """(I K, D), (T K, D) -> (I, T): pooling operators over the matrix of all element pairs."""
    c = (alpha * images.mm(texts.t())).exp().unsqueeze(0)
    rows = F.avg_pool2d(F.lp_pool2d(c, 1, (1, k), (1, k)).log(), (k, 1), (k, 1))
    columns = F.avg_pool2d(F.lp_pool2d(c, 1, (k, 1), (k, 1)).log(), (1, k), (1, k))
    return ((rows + columns) / (2 * alpha)).squeeze(0)


def set_triplet(scores: Tensor, captions: int, margin: float) -> Tensor:
    """DivE: the hardest negative of every match, averaged in each direction."""
    images = len(scores)
    match = torch.eye(images).repeat_interleave(captions, 1) > 0.5
    positive = scores[match].view(images, captions)
    negatives = scores.masked_fill(match, -float("inf"))
    i2t = (margin + negatives.max(1)[0].unsqueeze(1) - positive).clamp(min=0).mean()
    t2i = (margin + negatives.max(0)[0] - positive.view(-1)).clamp(min=0).mean()
    return i2t + t2i


def mmd(x: Tensor, y: Tensor) -> Tensor:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * torch.cdist(a, b))

    return kernel(x, x).mean() - 2 * kernel(x, y).mean() + kernel(y, y).mean()


def uniformity(residual: Tensor) -> Tensor:
    r = F.normalize(residual, dim=-1)
    distance = torch.cdist(r, r)
    upper = torch.triu(torch.ones(r.size(1), r.size(1)), diagonal=1) > 0.5
    return torch.exp(-2 * distance[:, upper].pow(2)).mean()


# ------------------------------------------------------------------------------------------------ models


class Single(nn.Module):
    """VSE∞ (GPO, hardest triplet) or VSE+2AD (AdPool, AdOpt)."""

    def __init__(self, vocabulary_size: int, input_dim: int, word_dim: int, dim: int, adaptive: bool) -> None:
        super().__init__()
        self.adaptive = adaptive
        self.img, self.txt = RegionProjection(input_dim, dim), WordGRU(vocabulary_size, word_dim, dim, 0.0)
        self.img_pool, self.txt_pool = (AdPool(dim) if adaptive else GPO() for _ in range(2))

    def loss(self, batch: Batch) -> Tensor:
        images = l2norm(self.img_pool(self.img(batch.images), batch.image_lengths))
        _, states, _ = self.txt(batch.captions, batch.lengths)
        texts = l2norm(self.txt_pool(states, torch.Tensor(batch.lengths)))
        scores = images[batch.order].mm(texts.t())
        return adopt(scores) if self.adaptive else triplet(scores, 0.2)


class DivE(nn.Module):
    def __init__(
        self, vocabulary_size: int, input_dim: int, word_dim: int, dim: int, captions: int, dropout: float, **block: int
    ) -> None:
        super().__init__()
        self.captions, self.k = captions, block["k"]
        self.img, self.txt = (
            DivEProjection(input_dim, dim, dropout),
            WordGRU(vocabulary_size, word_dim, dim, dropout),
        )
        self.img_sets = SetPrediction(dim, dim, sine=False, dropout=dropout, **block)
        self.txt_sets = SetPrediction(dim, word_dim, sine=True, dropout=dropout, **block)

    def loss(self, batch: Batch) -> Tensor:
        real = valid(batch.image_lengths, batch.images.size(1))
        pooled = self.img(batch.images).masked_fill(~real.unsqueeze(-1), -float("inf")).max(1)[0]
        images, image_residual = self.img_sets(self.img(batch.images), pooled, real)
        words, _, last = self.txt(batch.captions, batch.lengths)
        text_real = valid(torch.Tensor(batch.lengths), batch.captions.size(1))
        texts, text_residual = self.txt_sets(words, last, text_real)
        recovery = torch.Tensor(batch.order).long().argsort()
        texts, text_residual = texts[recovery], text_residual[recovery]
        x, y = images.reshape(-1, images.size(-1)), texts.reshape(-1, texts.size(-1))
        loss = set_triplet(smooth_chamfer(x, y, self.k, 16.0), self.captions, 0.2)
        return loss + 0.01 * mmd(x, y) + 0.01 * (uniformity(image_residual) + uniformity(text_residual))


def optimiser(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, foreach=False, fused=False)


def step(model: Single | DivE, batch: Batch, optimiser: torch.optim.Optimizer, clip: float) -> float:
    optimiser.zero_grad()
    loss = model.loss(batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip, foreach=False)
    optimiser.step()
    return loss.item()
