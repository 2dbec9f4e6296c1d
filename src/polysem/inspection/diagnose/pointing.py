"""The pointing game: does an element look at the thing that its nearest caption names?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from polysem import masked_ops
from polysem.data.collection import Box, Item
from polysem.data.images import load_image
from polysem.data.store import FeatureStore
from polysem.encoders import Detector, ImageEncoder
from polysem.inspection.attention import Attention, image_attentions
from polysem.inspection.diagnose.caption_objects import Names
from polysem.inspection.gallery import Gallery, Progress, Store
from polysem.inspection.token_boxes import Places, places, stored_places

MOST = 1000
"""Pictures that are looked at."""
LEVELLED = 1e-3
"""Of an equal share: weights that differ by less are equal."""
RESAMPLES, LEVEL = 2000, 0.95
_BATCH = 32

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Share:
    """A share of trials with its 95 % bootstrap interval over pictures. trials: an element of a picture is one."""

    value: float
    low: float
    high: float
    trials: int


@dataclass(frozen=True)
class Pointing:
    """A trial is an element whose nearest caption names something with a box in the picture; it is a hit if the token
    that the element attends to most has its centre in such a box.

    accuracy: at the last iteration. chance: of a token drawn by lot. habit: of the tokens that the same element looks
    at in all pictures: what a fixed way of looking would score. above: accuracy - the larger of chance and habit.
    on_anything: how often the token lies on any thing at all. by_slot: (iterations) x (elements).
    own: the same accuracy where the nearest of the picture's own captions is taken, not of all captions.
    covered: the share of elements that made a trial.
    """

    pictures: int
    covered: float
    accuracy: Share
    chance: float
    habit: float
    above: Share
    on_anything: float
    own: Share
    own_chance: float
    by_slot: tuple[tuple[Share, ...], ...]
    chance_by_slot: tuple[float, ...]


def pointing(gallery: Gallery, features: Store = None, progress: Progress | None = None) -> Pointing | str:
    """The result, or in words why there is none."""
    boxed = [place for place, item in enumerate(gallery.items) if item.boxes and item.captions]
    if not boxed:
        return "No boxes are known of these pictures."
    if len(boxed) > MOST:
        boxed = [boxed[i * len(boxed) // MOST] for i in range(MOST)]
    store = None if features is None else FeatureStore.open(features)
    if store is None and not isinstance(gallery.model.image.encoder, ImageEncoder):
        return "Where the model's features lie in the picture is not known."
    looks, even = [], 0
    for (place, item), seen in zip(
        ((place, gallery.items[place]) for place in boxed), _attentions(gallery, boxed, store), strict=True
    ):
        if seen.how == "omission":
            return "This model has no attention: its tokens change each other before they are pooled."
        if bool((seen.last.amax(-1) - seen.last.amin(-1) < LEVELLED / seen.last.shape[-1]).all()):
            even += 1  # the strongest of equal weights would be the first token: a corner of the picture
        where = _places(gallery, item, store, seen.weights.shape[-1])
        if not bool(where.located.any()):
            return "Where the model's features lie in the picture is not known."
        looks.append(_Look.of(place, item, seen, where))
        if progress is not None:
            progress("pointing game", len(looks), len(boxed))
    if even == len(looks):
        return "This model weighs all tokens of a picture alike: it looks at nothing in particular."
    return _summed(gallery, looks)


@dataclass(frozen=True, eq=False)
class _Look:
    """One picture. tokens: (T, K) the one attended to most, of those with a place. inside: (names, tokens)."""

    place: int
    names: list[str]
    tokens: npt.NDArray[np.int64]
    inside: Flags

    @classmethod
    def of(cls, place: int, item: Item, seen: Attention, where: Places) -> _Look:
        names = sorted({box.name for box in item.boxes})
        centres = where.centres[where.located]
        inside = torch.stack([_inside(centres, [b for b in item.boxes if b.name == name]) for name in names])
        return cls(place, names, seen.weights[..., where.located].argmax(-1).numpy(), inside.numpy())


def _inside(centres: Tensor, boxes: list[Box]) -> Tensor:
    """(N,) whether each point lies in any of the boxes."""
    x, y = centres[:, 0], centres[:, 1]
    found = torch.zeros(len(centres), dtype=torch.bool)
    for box in boxes:
        found |= (x >= box.x0) & (x < box.x1) & (y >= box.y0) & (y < box.y1)
    return found


def _summed(gallery: Gallery, looks: list[_Look]) -> Pointing | str:
    said = _Said(gallery)
    habits = _habits(looks)
    anywhere = np.mean([np.any(look.inside[:, look.tokens[-1]], axis=0).mean() for look in looks])
    every = _Trials.of(looks, [said.nearest(look.place, whole=True) for look in looks], habits, said)
    own = _Trials.of(looks, [said.nearest(look.place, whole=False) for look in looks], habits, said)
    if not every.counted.any() or not own.counted.any():
        return "No caption names any of the things that have a box."
    last = every.hits[:, -1]
    chance, habit = every.mean(every.chance), every.mean(every.habit[:, -1])
    baseline = every.chance if chance >= habit else every.habit[:, -1]
    return Pointing(
        len(looks),
        float(every.counted.mean()),
        every.share(last),
        chance,
        habit,
        every.share(last - baseline),
        float(anywhere),
        own.share(own.hits[:, -1]),
        own.mean(own.chance),
        tuple(
            tuple(every.share(every.hits[:, step], slot) for slot in range(last.shape[1]))
            for step in range(every.hits.shape[1])
        ),
        tuple(every.mean(every.chance, slot) for slot in range(last.shape[1])),
    )


@dataclass(frozen=True, eq=False)
class _Trials:
    """counted: (n, K); hits: (n, T, K); chance: (n, K); habit: (n, T, K), of n pictures."""

    counted: Flags
    hits: Floats
    chance: Floats
    habit: Floats

    @classmethod
    def of(cls, looks: list[_Look], nearest: list[list[int]], habits: Floats | None, said: _Said) -> _Trials:
        counted, hits, chance, habit = [], [], [], []
        for look, captions in zip(looks, nearest, strict=True):
            rows = [[name in said.names[caption] for name in look.names] for caption in captions]
            targets: Flags = np.array(rows, np.int64) @ look.inside > 0  # (K, tokens)
            counted.append([any(row) for row in rows])
            hits.append(np.stack([targets[np.arange(len(row)), row] for row in look.tokens]))
            chance.append(targets.mean(1))
            habit.append(hits[-1] * 0.0 if habits is None else (habits * targets).sum(-1))
        return cls(np.array(counted, bool), np.array(hits, np.float64), np.array(chance, np.float64), np.array(habit))

    def mean(self, values: Floats, slot: int | None = None) -> float:
        counted, values = self._of(values, slot)
        return float(values[counted].mean()) if counted.any() else float("nan")

    def share(self, values: Floats, slot: int | None = None) -> Share:
        """values: (n, K)."""
        counted, chosen = self._of(values, slot)
        totals = np.stack([(chosen * counted).sum(1), counted.sum(1)], axis=1)
        drawn = np.random.default_rng(0).multinomial(len(totals), np.full(len(totals), 1 / len(totals)), RESAMPLES)
        sums = drawn @ totals
        sums = sums[sums[:, 1] > 0]
        if not len(sums):
            return Share(float("nan"), float("nan"), float("nan"), 0)
        low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Share(self.mean(values, slot), float(low), float(high), int(counted.sum()))

    def _of(self, values: Floats, slot: int | None) -> tuple[Flags, Floats]:
        return (self.counted, values) if slot is None else (self.counted[:, [slot]], values[:, [slot]])


def _habits(looks: list[_Look]) -> Floats | None:
    """(T, K, tokens) how often each token is the one; None where pictures have no tokens in common."""
    sizes = {look.inside.shape[1] for look in looks}
    if len(sizes) > 1:
        return None
    tokens = np.stack([look.tokens for look in looks])
    return np.stack([(tokens == token).mean(0) for token in range(sizes.pop())], axis=-1)


class _Said:
    """What the captions say, and which is nearest to each element."""

    def __init__(self, gallery: Gallery) -> None:
        captions = gallery.items.captions
        known = Names(box.name for item in gallery.items for box in item.boxes)
        self.names = [known.named(caption) for caption in captions]
        self.images = masked_ops.unit(gallery.embeddings.images.float())
        texts = masked_ops.unit(gallery.embeddings.texts.float())
        self.per_text, self.texts = texts.shape[1], texts.flatten(0, 1)
        counts = [len(item.captions) for item in gallery.items]
        self.first = np.concatenate([[0], np.cumsum(counts)])

    def nearest(self, place: int, whole: bool) -> list[int]:
        """The caption nearest to each element of an image: of all captions, or of its own."""
        first, last = (0, int(self.first[-1])) if whole else (int(self.first[place]), int(self.first[place + 1]))
        part = self.texts[first * self.per_text : last * self.per_text]
        best = (self.images[place] @ part.t()).argmax(1)
        return [first + int(element) // self.per_text for element in best]


def _attentions(gallery: Gallery, boxed: list[int], store: FeatureStore | None) -> Iterator[Attention]:
    for first in range(0, len(boxed), _BATCH):
        items = [gallery.items[place] for place in boxed[first : first + _BATCH]]
        given: Any = [item.media.path for item in items]
        if store is not None:
            given = store.batch(store.positions([item.id for item in items]))
        yield from image_attentions(gallery.model, given, batch_size=_BATCH)


def _places(gallery: Gallery, item: Item, store: FeatureStore | None, tokens: int) -> Places:
    encoder = gallery.model.image.encoder
    if isinstance(encoder, Detector):
        return places(encoder, load_image(item.media.path))
    size = _size(item.media.path)
    if store is not None and not isinstance(encoder, ImageEncoder):
        return stored_places(store.manifest, tokens, size)
    return places(encoder, size)


def _size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size
