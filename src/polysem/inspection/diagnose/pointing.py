"""The pointing game: does an element attend to the thing that its nearest caption names?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from polysem import masked_ops
from polysem.data.collection import Box, Item
from polysem.data.images import load_image
from polysem.data.store import FeatureStore
from polysem.encoders import ImageEncoder
from polysem.inspection.attention import Attention, image_attentions
from polysem.inspection.diagnose.error_analysis import NameFinder
from polysem.inspection.gallery import EmbeddedGallery, StorePath
from polysem.inspection.token_boxes import TokenBoxes, locate_stored_tokens, locate_tokens
from polysem.progress import Progress

MOST = 1000
"""Images at most that take part."""
_EQUAL = 1e-3
"""Of an equal share: weights that differ by less are equal."""
RESAMPLES, LEVEL = 2000, 0.95
_BATCH = 32

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HitRate:
    """A share of trials with its 95 % bootstrap interval over images. trials: an element of an image is one."""

    value: float
    low: float
    high: float
    trials: int


@dataclass(frozen=True)
class PointingGame:
    """A trial is an element whose nearest caption names something with a box in the image; it is a hit if the token
    that the element attends to most has its centre in such a box.

    accuracy: at the last iteration. chance: of a random token. habit: of the tokens that the same element attends to
    in all images: what a fixed way of looking would score. above: accuracy - the larger of chance and habit.
    on_anything: how often the token lies on any thing at all. by_slot: (iterations) x (elements).
    own: the same accuracy where the nearest of the image's own captions is taken, not of all captions.
    covered: the share of elements that made a trial.
    """

    pictures: int
    covered: float
    accuracy: HitRate
    chance: float
    habit: float
    above: HitRate
    on_anything: float
    own: HitRate
    own_chance: float
    by_slot: tuple[tuple[HitRate, ...], ...]
    chance_by_slot: tuple[float, ...]


def play_pointing_game(
    gallery: EmbeddedGallery, features: StorePath = None, progress: Progress | None = None
) -> PointingGame | str:
    """The result, or in words why there is none."""
    boxed = [i for i, item in enumerate(gallery.items) if item.boxes and item.captions]
    if not boxed:
        return "No boxes are known of these pictures."
    if len(boxed) > MOST:
        boxed = [boxed[i * len(boxed) // MOST] for i in range(MOST)]
    store = None if features is None else FeatureStore.open(features)
    if store is None and not isinstance(gallery.model.image.encoder, ImageEncoder):
        return "Where the model's features lie in the picture is not known."
    first = next(iterate_attentions(gallery, boxed[:1], store))  # of omission each item takes many passes
    if first.how == "omission":
        return "This model has no attention: its tokens change each other before they are pooled."
    peaks, even = [], 0
    for number, attention in zip(boxed, iterate_attentions(gallery, boxed, store), strict=True):
        weights = attention.last
        if bool((weights.amax(-1) - weights.amin(-1) < _EQUAL / weights.shape[-1]).all()):
            even += 1  # the strongest of equal weights would be the first token: a corner of the image
        tokens = locate_item_tokens(gallery, gallery.items[number], store, weights.shape[-1])
        if not bool(tokens.located.any()):
            return "Where the model's features lie in the picture is not known."
        names, inside = find_tokens_inside(tokens, gallery.items[number].boxes)
        strongest = attention.weights[..., tokens.located].argmax(-1)
        peaks.append(_Peaks(number, names, strongest.numpy(), inside))
        if progress is not None:
            progress("pointing game", len(peaks), len(boxed))
    if even == len(peaks):
        return "This model weighs all tokens of a picture alike: it looks at nothing in particular."
    return _score(gallery, peaks)


def find_tokens_inside(tokens: TokenBoxes, boxes: Sequence[Box]) -> tuple[list[str], Flags]:
    """The names of the boxes, and (names, located tokens) whether the token's centre lies on a thing of that name."""
    x, y = tokens.centres[tokens.located].unbind(1)
    on = [(x >= b.x0) & (x < b.x1) & (y >= b.y0) & (y < b.y1) for b in boxes]
    names = sorted({box.name for box in boxes})
    inside = [torch.stack([each for each, b in zip(on, boxes, strict=True) if b.name == n]).any(0) for n in names]
    return names, torch.stack(inside).numpy()


def iterate_attentions(
    gallery: EmbeddedGallery, boxed: list[int], store: FeatureStore | None, occlude: bool = False
) -> Iterator[Attention]:
    """The attention of these images of a gallery, a batch in memory at a time."""
    for first in range(0, len(boxed), _BATCH):
        items = [gallery.items[number] for number in boxed[first : first + _BATCH]]
        inputs: Any = [item.media.path for item in items]
        if store is not None:
            inputs = store.batch(store.positions([item.id for item in items]))
        yield from image_attentions(gallery.model, inputs, batch_size=_BATCH, occlude=occlude)


def locate_item_tokens(gallery: EmbeddedGallery, item: Item, store: FeatureStore | None, tokens: int) -> TokenBoxes:
    """The boxes of an item's tokens in its image."""
    encoder = gallery.model.image.encoder
    if isinstance(encoder, ImageEncoder) and not encoder.tiles_image:
        return locate_tokens(encoder, load_image(item.media.path))
    with Image.open(item.media.path) as image:
        size = image.size
    if store is not None and not isinstance(encoder, ImageEncoder):
        return locate_stored_tokens(store.manifest, tokens, size)
    return locate_tokens(encoder, size)


@dataclass(frozen=True, eq=False)
class _Peaks:
    """Of one image, the token each element attends to most.

    tokens: (T, K), of those with a box. inside: (names, tokens) whether a token's centre lies on a thing of that name.
    """

    number: int
    names: list[str]
    tokens: npt.NDArray[np.int64]
    inside: Flags


def _score(gallery: EmbeddedGallery, peaks: list[_Peaks]) -> PointingGame | str:
    captions = _CaptionIndex(gallery)
    habits = None
    if len({image.inside.shape[1] for image in peaks}) == 1:  # images with the same tokens
        tokens = np.stack([image.tokens for image in peaks])
        # (T, K, tokens) how often each token has the peak
        habits = np.stack([(tokens == token).mean(0) for token in range(peaks[0].inside.shape[1])], axis=-1)
    on_anything = np.mean([np.any(image.inside[:, image.tokens[-1]], axis=0).mean() for image in peaks])
    counted, hits, chances, habitual = _run_trials(peaks, captions, habits, own_only=False)
    own_counted, own_hits, own_chances, _ = _run_trials(peaks, captions, habits, own_only=True)
    if not counted.any() or not own_counted.any():
        return "No caption names any of the things that have a box."
    chance, habit = _mean(chances, counted), _mean(habitual[:, -1], counted)
    slots = [np.s_[:, [slot]] for slot in range(counted.shape[1])]
    return PointingGame(
        pictures=len(peaks),
        covered=float(counted.mean()),
        accuracy=measure_rate(hits[:, -1], counted),
        chance=chance,
        habit=habit,
        above=measure_rate(hits[:, -1] - (chances if chance >= habit else habitual[:, -1]), counted),
        on_anything=float(on_anything),
        own=measure_rate(own_hits[:, -1], own_counted),
        own_chance=_mean(own_chances, own_counted),
        by_slot=tuple(tuple(measure_rate(step[s], counted[s]) for s in slots) for step in hits.swapaxes(0, 1)),
        chance_by_slot=tuple(_mean(chances[s], counted[s]) for s in slots),
    )


def _run_trials(
    peaks: list[_Peaks], captions: _CaptionIndex, habits: Floats | None, own_only: bool
) -> tuple[Flags, Floats, Floats, Floats]:
    """Of n images: (n, K) what counts as a trial, (n, T, K) hits, (n, K) those of chance, (n, T, K) those of habit."""
    counted, hits, chance, habit = [], [], [], []
    for image in peaks:
        nearest = captions.find_nearest(image.number, own_only)
        named = [[name in captions.names[caption] for name in image.names] for caption in nearest]
        targets: Flags = np.array(named, np.int64) @ image.inside > 0  # (K, tokens)
        counted.append([any(row) for row in named])
        hits.append(np.stack([targets[np.arange(len(row)), row] for row in image.tokens]))
        chance.append(targets.mean(1))
        habit.append(hits[-1] * 0.0 if habits is None else (habits * targets).sum(-1))
    return np.array(counted, bool), np.array(hits, np.float64), np.array(chance, np.float64), np.array(habit)


def _mean(values: Floats, counted: Flags) -> float:
    return float(values[counted].mean()) if counted.any() else float("nan")


def measure_rate(values: Floats, counted: Flags) -> HitRate:
    """The mean of (n, K) values over trials, with its interval."""
    totals = np.stack([(values * counted).sum(1), counted.sum(1)], axis=1)
    drawn = np.random.default_rng(0).multinomial(len(totals), np.full(len(totals), 1 / len(totals)), RESAMPLES)
    sums = drawn @ totals
    sums = sums[sums[:, 1] > 0]
    if not len(sums):
        return HitRate(float("nan"), float("nan"), float("nan"), 0)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return HitRate(_mean(values, counted), float(low), float(high), int(counted.sum()))


class _CaptionIndex:
    """The names in each caption, and the caption nearest to each element of an image."""

    def __init__(self, gallery: EmbeddedGallery) -> None:
        finder = NameFinder(box.name for item in gallery.items for box in item.boxes)
        self.names = [finder.find(caption) for caption in gallery.items.captions]
        self.images = masked_ops.normalise(gallery.embeddings.images.float())
        texts = masked_ops.normalise(gallery.embeddings.texts.float())
        self.per_text, self.texts = texts.shape[1], texts.flatten(0, 1)
        self.first = np.cumsum([0, *(len(item.captions) for item in gallery.items)]).tolist()

    def find_nearest(self, number: int, own_only: bool) -> list[int]:
        """The caption nearest to each element of an image: of all captions, or of its own."""
        first, last = (self.first[number], self.first[number + 1]) if own_only else (0, self.first[-1])
        part = self.texts[first * self.per_text : last * self.per_text]
        best = (self.images[number] @ part.t()).argmax(1)
        return [first + int(element) // self.per_text for element in best]
