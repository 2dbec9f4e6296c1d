"""Twins of what looks at the numbers while it computes, so that a tower can be written down as a graph.

The towers are fast because they look: which lengths a batch has, whether anything is padded, what numpy can sort. A
graph for every batch cannot look. While one is traced, each such function is replaced by one that computes the same
without; `polysem.export.parity` then compares the graph with the originals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from polysem import masked_ops
from polysem.encoders.bigru import BiGRU
from polysem.encoders.detector import OWL, Detector
from polysem.encoders.image import ImageEncoder
from polysem.encoders.region import Region
from polysem.encoders.text import Tokens
from polysem.encoders.transformer import Transformer
from polysem.encoders.video_frames import VideoFrames
from polysem.encoders.video_frames import _mean as mean_of_frame
from polysem.export import traceable_gru
from polysem.features import LocalFeatures
from polysem.models import length_buckets
from polysem.pooling import coefficients
from polysem.pooling.contextual import RelationLayer
from polysem.pooling.fspool import FSPool
from polysem.pooling.gpo import GPO
from polysem.pooling.simple import KMax
from polysem.sets import SetPrediction, SetPredictor, batch_threads
from polysem.sets.attention import AttentionPlan, SlotAttention
from polysem.sets.semantic_sharing import SemanticSharing

_lock = threading.Lock()
_plan = SlotAttention.plan


@contextmanager
def traceable() -> Iterator[None]:
    """Within, towers compute without looking at numbers. One at a time: other threads must not encode meanwhile."""
    with _lock, ExitStack() as stack:
        for owner, name, twin in _TWINS:
            stack.enter_context(patch.object(owner, name, twin))
        yield


def _unchecked(*_: Any) -> None:
    """A graph cannot refuse its input."""


# ---------------------------------------------------------------------------------------------------- tokens of a batch


def zero_padded(features: LocalFeatures) -> LocalFeatures:
    """Without asking first whether there is any padding."""
    return LocalFeatures(features.values.masked_fill(~features.mask[..., None], 0.0), features.mask, features.summary)


def sort_descending(x: Tensor, mask: Tensor, sentinel: float = float("-inf")) -> Tensor:
    """By the graph's own sort in place of numpy's."""
    columns = x.masked_fill(~mask[..., None], sentinel).transpose(1, 2).sort(dim=-1, descending=True).values
    return columns.transpose(1, 2).masked_fill(~masked_ops.ranks(mask)[..., None], 0.0)


def in_one_group(_: Tensor) -> list[length_buckets.Group]:
    return []


def all_items_at_once(run: batch_threads.Split, _: nn.Module, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    return run(x, mask)


# ------------------------------------------------------------------------------------------------------------- encoders


def encode_words(encoder: BiGRU, tokens: Tokens) -> LocalFeatures:
    """Real words and padding alike; the latter is left out by `layers`."""
    words = encoder.embedding(tokens.ids.masked_fill(~tokens.mask, 0))
    states, last = traceable_gru.both_ways(encoder.gru, words, tokens.mask.sum(1))
    return LocalFeatures(words if encoder.local == "words" else states, tokens.mask, last).zero_padded()


def encode_regions(encoder: Region, features: LocalFeatures) -> LocalFeatures:
    """Of every row, then without the padded ones: outside training a row does not meet the others."""
    clean = features.zero_padded()
    items, tokens = clean.mask.shape
    values = encoder.encode(clean.values.flatten(0, 1)).view(items, tokens, -1)
    return LocalFeatures(values, clean.mask, clean.summary).zero_padded()


def encode_tokens(encoder: Transformer, tokens: Tokens) -> LocalFeatures:
    ids = tokens.ids.masked_fill(~tokens.mask, encoder.pad)
    states: Tensor = encoder.backbone(input_ids=ids, attention_mask=tokens.mask.long()).last_hidden_state
    values = states if encoder.projection is None else encoder.projection(states)
    return LocalFeatures(values, tokens.mask).zero_padded()


def encode_frames(encoder: VideoFrames, pixels: Tensor) -> LocalFeatures:
    """All frames of all videos at once."""
    items, frames = pixels.shape[:2]
    tokens = mean_of_frame(encoder.encoder(pixels.flatten(0, 1))).view(items, frames, -1)
    return LocalFeatures(tokens, torch.ones_like(tokens[..., 0], dtype=torch.bool))


def surest_regions(encoder: Detector, pixels: Tensor) -> LocalFeatures:
    """Without the boxes, and by another sort: both put the first of equals first."""
    tokens, _, scores = encoder._owl(pixels) if encoder.family in OWL else encoder._detr(pixels)
    order = scores.topk(encoder.regions, dim=1).indices[..., None]
    return encoder.local(tokens.gather(1, order.expand(-1, -1, tokens.shape[2])))


# ------------------------------------------------------------------------------------------------------------- poolings


def gpo_weights(pooling: GPO, ranked: Tensor, mask: Tensor) -> Tensor:
    """For each item, not for each length that a batch has."""
    lengths = mask.sum(1)
    scores: Tensor = pooling.generator(lengths, mask.shape[1], ranked)
    return pooling._softmax(scores, lengths).to(ranked.dtype)


def positions(generator: coefficients.PositionInput, lengths: Tensor, padded: int, ranked: Tensor | None) -> Tensor:
    """Without counting whether the table of positions is long enough: the description says how far it goes."""
    places = torch.arange(padded, device=lengths.device)
    if generator.table is None:
        found = coefficients.sinusoids(padded, generator.dim, lengths.device)
    else:
        found = generator.table.weight[places.clamp(max=generator.max_length - 1)]
    found = found.expand(lengths.shape[0], -1, -1)
    return found if generator.feature is None or ranked is None else found + generator.feature(ranked)


def recurrent_scores(
    generator: coefficients.GRUGenerator, lengths: Tensor, padded: int, ranked: Tensor | None
) -> Tensor:
    x = generator.positions(lengths, padded, ranked).to(generator.score.weight)
    scores: Tensor = generator.score(traceable_gru.both_ways(generator.gru, x, lengths)[0])
    return scores


def interpolated_scores(
    generator: coefficients.InterpolationGenerator, lengths: Tensor, padded: int, _: Tensor | None
) -> Tensor:
    """The curve at each rank's share of the way, where the original stretches it to one length after the other."""
    knots = generator.knots[0].t()
    pieces = len(knots) - 1
    place = torch.arange(padded, device=lengths.device) / (lengths[:, None] - 1).clamp(min=1)
    place = place.clamp(max=1) * pieces
    left = place.floor().long()
    share = (place - left)[..., None]
    return (1 - share) * knots[left] + share * knots[(left + 1).clamp(max=pieces)]


def fspool_curves(pooling: FSPool, mask: Tensor) -> Tensor:
    return pooling.curve(mask.sum(1), mask.shape[1])


def mean_of_largest(pooling: KMax, x: Tensor, mask: Tensor) -> Tensor:
    """From a full sort: how many there are to take is not known."""
    taken = masked_ops.ranks(mask) & (torch.arange(mask.shape[1], device=mask.device) < pooling.k)
    return masked_ops.mean(masked_ops.sort_descending(x, mask).masked_fill(~taken[..., None], 0.0), taken)


def relate(layer: RelationLayer, x: Tensor, mask: Tensor) -> Tensor:
    messages = layer.g(x).masked_fill(~mask[..., None], 0.0)
    relations = layer.theta(x) @ layer.phi(x).transpose(1, 2) / mask.sum(1)[:, None, None]
    items, tokens = mask.shape
    update: Tensor = layer.norm(layer.out(relations @ messages).flatten(0, 1)).view(items, tokens, -1)
    return x + update.masked_fill(~mask[..., None], 0.0)


# ------------------------------------------------------------------------------------------------------ set predictors


def predict(predictor: SetPredictor, features: LocalFeatures, global_feature: Tensor | None = None) -> SetPrediction:
    return predictor.predict(features, global_feature)


def plan_of_example(attention: SlotAttention, _: int, tokens: int, slots: int) -> AttentionPlan:
    """The plan for one item as long as those of the example: how many will come is not known."""
    return _plan(attention, 1, int(tokens), slots)


def encode_classes(predictor: SemanticSharing, features: LocalFeatures) -> tuple[Tensor, Tensor | None]:
    """Always with a mask, also where nothing is padded."""
    x, real = features.zero_padded().values, features.mask
    if predictor.cls is not None:
        x = torch.cat([predictor.cls.expand(x.shape[0], 1, -1), x], 1)
        real = torch.cat([torch.ones_like(real[:, :1]), real], 1)
    if predictor.borrowed is not None:
        states = predictor.borrowed(x, real)
    else:
        for layer in predictor.layers:
            x = layer(x, real[:, None, None])
        states = predictor.norm(x).relu()
    return (states, None) if predictor.cls is None else (states[:, 1:], states[:, 0])


_TWINS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (LocalFeatures, "__post_init__", _unchecked),
    (LocalFeatures, "check", _unchecked),
    (LocalFeatures, "zero_padded", zero_padded),
    (Tokens, "__post_init__", _unchecked),
    (masked_ops, "sort_descending", sort_descending),
    (length_buckets, "groups", in_one_group),
    (batch_threads, "by_items", all_items_at_once),
    (BiGRU, "forward", encode_words),
    (Region, "forward", encode_regions),
    (Transformer, "forward", encode_tokens),
    (ImageEncoder, "check", _unchecked),
    (Detector, "forward", surest_regions),
    (VideoFrames, "forward", encode_frames),
    (nn.TransformerEncoderLayer, "forward", traceable_gru.encode_layer),
    (SetPredictor, "forward", predict),
    (GPO, "_theta", gpo_weights),
    (coefficients.PositionInput, "forward", positions),
    (coefficients.GRUGenerator, "forward", recurrent_scores),
    (coefficients.InterpolationGenerator, "forward", interpolated_scores),
    (FSPool, "_curves", fspool_curves),
    (KMax, "pool", mean_of_largest),
    (RelationLayer, "forward", relate),
    (SlotAttention, "plan", plan_of_example),
    (SemanticSharing, "_encode", encode_classes),
)
