"""Batches of very different lengths, cut into groups of like ones and put together again."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from polysem.features import LocalFeatures
from polysem.masked_ops import is_tracing
from polysem.sets import SetPrediction

GROUPS = 4
WORTHWHILE = 0.75
"""Share of the padded batch that the groups together may have: more, and cutting costs what it saves."""
SMALLEST = 32
"""Items in a group: fewer keep the processor waiting."""

Group = tuple[Tensor, int]
"""The rows of a group, and the tokens its longest item reaches to."""


def groups(mask: Tensor) -> list[Group]:
    """Rows of like length together, where that saves something; otherwise none. mask: (B, N)."""
    if is_tracing():
        return []
    items, longest = mask.shape
    count = min(GROUPS, items // SMALLEST)
    if count < 2:
        return []
    reach = (mask * torch.arange(1, longest + 1, device=mask.device)).amax(1)
    order = reach.argsort(stable=True)
    found = [(rows, int(reach[rows[-1]])) for rows in order.tensor_split(count)]
    worthwhile = sum(len(rows) * length for rows, length in found) <= WORTHWHILE * items * longest
    return found if worthwhile else []


def split(features: LocalFeatures, found: list[Group]) -> list[LocalFeatures]:
    """The groups of a batch, each without the padding that none of its rows needs."""
    items, width, dim = features.values.shape
    # One gather for all: its gradient then fills one tensor of the batch's size, not one for each group.
    places = [(rows[:, None] * width + torch.arange(length, device=rows.device)).flatten() for rows, length in found]
    tokens = features.values.reshape(items * width, dim).index_select(0, torch.cat(places))
    parts = tokens.split([len(place) for place in places])
    return [
        LocalFeatures(
            values.view(len(rows), length, dim),
            features.mask[rows, :length],
            None if features.summary is None else features.summary.index_select(0, rows),
        )
        for values, (rows, length) in zip(parts, found, strict=True)
    ]


def joined(parts: list[SetPrediction], rows: list[Tensor], length: int) -> SetPrediction:
    """The predictions of the groups as if they had been made together."""
    back = torch.cat(rows).argsort()
    vectors = torch.cat([part.vectors for part in parts]).index_select(0, back)
    residual = torch.cat([part.residual for part in parts]).index_select(0, back)
    attention = [_padded(part.attention, length) for part in parts if part.attention is not None]
    steps = [_padded(part.attention_steps, length) for part in parts if part.attention_steps is not None]
    logits = [part.logits for part in parts if part.logits is not None]
    states = [F.pad(part.states, (0, 0, 0, length - part.states.shape[1])) for part in parts if part.states is not None]
    return SetPrediction(
        vectors,
        torch.cat(attention).index_select(0, back) if attention else None,
        residual,
        torch.cat(steps, dim=1).index_select(1, back) if steps else None,
        torch.cat(logits).index_select(0, back) if logits else None,
        torch.cat(states).index_select(0, back) if states else None,
    )


def _padded(attention: Tensor, length: int) -> Tensor:
    return F.pad(attention, (0, length - attention.shape[-1]))
