"""From sets of vectors to a map in two dimensions: the data that every drawing is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polysem import cpu_blocks, masked_ops
from polysem.errors import ConfigError, InputError, unknown
from polysem.inspection.map.points import Points, Side
from polysem.inspection.map.tsne import tsne

Method = Literal["tsne", "pca"]
LIMIT = 20_000
"""Elements on a map, if nothing else is said."""
KEPT = 50
"""Dimensions that t-SNE looks at: the principal ones."""
MOST_LABELS = 7
"""Labels with a colour of their own; the rarer ones share one."""
OTHER = "other"

Progress = Callable[[str, int, int], None]
"""Stage, done, of."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MapItem:
    """An image or text. label: the most common of its labels that has a colour on the map; None without labels."""

    id: str
    side: Side
    text: str
    partner: str
    label: str | None = None


@dataclass(frozen=True, eq=False)
class Map:
    """m elements in the plane.

    positions: (m, 2). item, slot: (m,) the place in `items` and the element's number in its set. lines: (p, 2) elements
    to join, if asked for: of every caption and its image, the two that are nearest to each other in the full space.
    labels: those with a colour, the most common first. notes: what was done, for a reader.
    """

    positions: npt.NDArray[np.float32]
    item: Ints
    slot: Ints
    items: Sequence[MapItem]
    labels: Sequence[str]
    lines: Ints
    method: Method
    notes: Sequence[str]

    @property
    def slots(self) -> int:
        return int(self.slot.max(initial=0)) + 1

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "method": self.method,
            "notes": list(self.notes),
            "elements": [
                {
                    "id": self.items[item].id,
                    "side": self.items[item].side,
                    "slot": slot + 1,
                    "label": self.items[item].label,
                    "x": round(float(x), 4),
                    "y": round(float(y), 4),
                }
                for item, slot, (x, y) in zip(self.item.tolist(), self.slot.tolist(), self.positions, strict=True)
            ],
        }


def lay_out(
    points: Points | Sequence[Points],
    *,
    method: Method = "tsne",
    pairs: bool = False,
    limit: int = LIMIT,
    seed: int = 0,
    progress: Progress | None = None,
) -> Map:
    """Lay the elements of all sets out in the plane.

    method: "tsne" keeps neighbours together, distances between clusters mean little; "pca" keeps the large distances.
    pairs: also join captions to their images. limit: elements to show; of more, some items are drawn by lot (`seed`),
    images together with their captions.
    """
    sides = [points] if isinstance(points, Points) else list(points)
    if method not in ("tsne", "pca"):
        raise unknown("method of a map", str(method), ("tsne", "pca"))
    if limit < 2:
        raise ConfigError(f"limit is {limit}; a map has at least 2 elements.")
    if not sides or not sum(map(len, sides)):
        raise InputError("Nothing to draw: there are no items. Give at least one collection of points.")
    widths = {int(each.tensor.shape[2]) for each in sides}
    if len(widths) > 1:
        raise InputError(
            f"All points must lie in one space; they have {' and '.join(map(str, sorted(widths)))} "
            "dimensions. Were they made by the same model?"
        )
    sides, notes = _sampled(sides, limit, seed)
    vectors = torch.cat([masked_ops.unit(each.tensor.float()).flatten(0, 1) for each in sides])
    principal, share = _principal(vectors)
    if method == "pca":
        positions = principal[:, :2]
        notes.append(
            f"The first two principal components: {share[:2].sum():.0%} of the variance. The rest is not seen."
        )
    else:
        told = None if progress is None else lambda done, total: progress("t-SNE", done, total)
        positions = _alone(lambda: tsne(principal[:, :KEPT], start=principal[:, :2], progress=told))
        kept = f"the {KEPT} principal components ({share[:KEPT].sum():.0%} of the variance)"
        notes.append(
            f"t-SNE of {kept if vectors.shape[1] > KEPT else 'the vectors'}, from a start of the first two. "
            "It keeps neighbours together; distances between clusters, and their sizes, mean little."
        )
    labels, items = _items(sides)
    sizes = [int(each.tensor.shape[1]) for each in sides for _ in range(len(each))]
    item = np.repeat(np.arange(len(items)), sizes)
    slot = np.concatenate([np.arange(size) for size in sizes])
    lines = _lines(vectors, item, items) if pairs else np.empty((0, 2), np.int64)
    return Map(positions.numpy().astype(np.float32), item, slot, items, labels, lines, method, notes)


def _sampled(sides: list[Points], limit: int, seed: int) -> tuple[list[Points], list[str]]:
    total = sum(each.elements for each in sides)
    if total <= limit:
        return sides, []
    cost = Counter[str]()
    for each in sides:
        for partner in each.partners or each.ids:
            cost[partner] += int(each.tensor.shape[1])
    order = list(cost)
    np.random.default_rng(seed).shuffle(order)
    chosen, used = set[str](), 0
    for partner in order:
        if used + cost[partner] <= limit or not chosen:
            chosen.add(partner)
            used += cost[partner]
    kept = [
        each.some([row for row, partner in enumerate(each.partners or each.ids) if partner in chosen]) for each in sides
    ]
    kept = [each for each in kept if len(each)]
    return kept, [f"{used:,} of {total:,} elements: items drawn by lot, images together with their captions."]


def _principal(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors along their principal axes, and each axis' share of the variance; two axes at least."""
    centred = vectors - vectors.mean(0)
    values, axes = torch.linalg.eigh((centred.t() @ centred).double())
    order = values.argsort(descending=True)[:KEPT]
    found = centred @ axes[:, order].float()
    if found.shape[1] < 2:
        found = torch.cat([found, torch.zeros(len(found), 2 - found.shape[1])], dim=1)
    return found, values[order].clamp(min=0) / values.clamp(min=0).sum().clamp(min=1e-30)


def _alone(work: Callable[[], Tensor]) -> Tensor:
    """On one thread: a thousand small steps, at each of which torch's threads would wait for one another."""
    pool = cpu_blocks.single_threaded_pool(1)
    try:
        return pool.submit(work).result()
    finally:
        pool.shutdown()


def _items(sides: Sequence[Points]) -> tuple[list[str], list[MapItem]]:
    counts = Counter(label for each in sides for own in each.labels for label in dict.fromkeys(own))
    common = [label for label, _ in counts.most_common(MOST_LABELS)]

    def label_of(own: Sequence[str]) -> str:
        return next((label for label in common if label in own), OTHER)

    items = []
    for each in sides:
        texts, partners = each.texts or each.ids, each.partners or each.ids
        labels = [label_of(own) for own in each.labels] if counts else [None] * len(each)
        make = partial(MapItem, side=each.side)
        items += [
            make(id=own, text=text, partner=partner, label=label)
            for own, text, partner, label in zip(each.ids, texts, partners, labels or [None] * len(each), strict=True)
        ]
    rest = [OTHER] if any(item.label == OTHER for item in items) else []
    return common + rest, items


def _lines(vectors: Tensor, item: Ints, items: Sequence[MapItem]) -> Ints:
    first = np.searchsorted(item, np.arange(len(items) + 1))
    images = {each.partner: place for place, each in enumerate(items) if each.side == "image"}
    found = []
    for place, each in enumerate(items):
        other = images.get(each.partner)
        if each.side == "text" and other is not None:
            here, there = slice(first[place], first[place + 1]), slice(first[other], first[other + 1])
            best = int((vectors[there] @ vectors[here].t()).argmax())
            size = first[place + 1] - first[place]
            found.append((first[other] + best // size, first[place] + best % size))
    return np.array(found, np.int64).reshape(-1, 2)
