"""From sets of vectors to a map in two dimensions: what goes on it, and the data that every drawing is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polysem import masked_ops
from polysem.data.collection import Side
from polysem.encoders import caption_keys
from polysem.errors import ConfigError, InputError, NonFiniteError, kind, unknown
from polysem.inspection.gallery import EmbeddedGallery
from polysem.inspection.map.tsne import run_tsne
from polysem.progress import Progress

Method = Literal["tsne", "pca"]
LIMIT = 20_000
"""Elements on a map by default."""
COMPONENTS = 50
"""Principal components that t-SNE looks at."""
MOST_LABELS = 7
"""Labels with a colour of their own; the rarer ones share one."""
OTHER = "other"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MapPoints:
    """Items of one side.

    Args:
        vectors: (n, K, D) array or tensor.
        ids: the name of each item. texts: what a reader is shown of it, the id if not given.
        labels: of each item, empty if it has none.
        partners: items with the same partner belong together, as an image and its captions do; the id if not given.
    """

    vectors: Any
    side: Side
    ids: Sequence[str]
    texts: Sequence[str] = ()
    labels: Sequence[Sequence[str]] = ()
    partners: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.side not in ("image", "text"):
            raise InputError(f"A side is 'image' or 'text', got {self.side!r}.")
        vectors = self.tensor
        if vectors.ndim != 3 or not vectors.is_floating_point():
            given = f"got {kind(self.vectors)}. Single vectors are sets of one: x[:, None]."
            raise InputError(f"Points are floating-point vectors of shape (items, set size, dim), {given}")
        for name in ("ids", "texts", "labels", "partners"):
            values = getattr(self, name)
            if len(values) != len(vectors) and (values or name == "ids"):
                raise InputError(f"{len(vectors)} {self.side} items need as many {name}, got {len(values)}.")
        if not bool(torch.isfinite(vectors).all()):
            causes = "Look for damaged features, or for a training run that diverged."
            raise NonFiniteError(f"Vectors of {self.side}s hold NaN or infinity. {causes}")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tensor(self) -> Tensor:
        return torch.as_tensor(self.vectors)

    @property
    def elements(self) -> int:
        """How many vectors there are in all."""
        return len(self.ids) * int(self.tensor.shape[1])

    def select(self, rows: Sequence[int]) -> MapPoints:
        """The items at these positions."""
        columns: Sequence[Sequence[Any]] = (self.ids, self.texts, self.labels, self.partners)
        selected = [[column[row] for row in rows] if column else [] for column in columns]
        return MapPoints(self.tensor[torch.tensor(rows, dtype=torch.long)], self.side, *selected)


def make_points(gallery: EmbeddedGallery) -> list[MapPoints]:
    """The images and the captions of a collection, as a model embeds them."""
    items, embeddings = gallery.items, gallery.embeddings
    ids = [item.id for item in items]
    texts = [item.captions[0] if item.captions else item.id for item in items]
    owners = [items[owner] for owner in items.caption_items.tolist()]
    keys, partners = caption_keys(items), [item.id for item in owners]
    return [
        MapPoints(embeddings.images, "image", ids, texts, [item.labels for item in items], ids),
        MapPoints(embeddings.texts, "text", keys, items.captions, [item.labels for item in owners], partners),
    ]


def make_index_points(index: Any, limit: int) -> list[MapPoints]:
    """The images and the texts of an open `polysem.search.Index`; of more than `limit` on a side, a random sample."""
    sides = []
    for side in index.stats().by_side:
        items = index.sample(side, limit)
        if items:
            ids, texts = [item.id for item in items], [item.caption or item.id for item in items]
            partners = [str(item.metadata.get("item", item.id)) for item in items]
            vectors = index.vectors(side, ids).astype("float32")
            sides.append(MapPoints(vectors, side, ids, texts, [item.labels for item in items], partners))
    return sides


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

    positions: (m, 2). item, slot: (m,) the index into `items` and the element's number in its set. lines: (p, 2)
    elements to join, if asked for: of every caption and its image, the two that are nearest to each other in the full
    space. labels: those with a colour, the most common first. notes: what was done, for a reader.
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
        elements = []
        for number, slot, (x, y) in zip(self.item.tolist(), self.slot.tolist(), self.positions.tolist(), strict=True):
            item = self.items[number]
            fields = {"id": item.id, "side": item.side, "slot": slot + 1, "label": item.label}
            elements.append({**fields, "x": round(x, 4), "y": round(y, 4)})
        return {"method": self.method, "notes": list(self.notes), "elements": elements}


def lay_out(
    points: MapPoints | Sequence[MapPoints],
    *,
    method: Method = "tsne",
    pairs: bool = False,
    limit: int = LIMIT,
    seed: int = 0,
    progress: Progress | None = None,
) -> Map:
    """Lay the elements of all sets out in the plane. The same points and seed give the same map.

    Args:
        method: "tsne" keeps neighbours together, distances between clusters mean little; "pca" keeps the large
            distances.
        pairs: also join captions to their images.
        limit: elements to show; of more, items are sampled (`seed`), images together with their captions.
        progress: called with the stage "t-SNE", the iterations done and their total.
    """
    sides = [points] if isinstance(points, MapPoints) else list(points)
    if method not in ("tsne", "pca"):
        raise unknown("method of a map", str(method), ("tsne", "pca"))
    if limit < 2:
        raise ConfigError(f"limit is {limit}; a map has at least 2 elements.")
    if not sides or not sum(map(len, sides)):
        raise InputError("Nothing to draw: there are no items. Give at least one collection of points.")
    widths = {int(side.tensor.shape[2]) for side in sides}
    if len(widths) > 1:
        dims = " and ".join(map(str, sorted(widths)))
        raise InputError(f"All points must lie in one space; these have {dims} dimensions. Take those of one model.")
    sides, notes = _sample(sides, limit, seed)
    vectors = torch.cat([masked_ops.normalise(side.tensor.float()).flatten(0, 1) for side in sides])
    principal, share = project(vectors)
    if method == "pca":
        positions = principal[:, :2]
        note = f"The first two principal components: {share[:2].sum():.0%} of the variance, the rest is not seen."
    else:
        positions = run_tsne(principal, start=principal[:, :2], progress=progress)
        reduced = f"the {COMPONENTS} principal components ({share.sum():.0%} of the variance)"
        note = (
            f"t-SNE of {reduced if vectors.shape[1] > COMPONENTS else 'the vectors'}, from a start of the first two. "
            "It keeps neighbours together; distances between clusters, and their sizes, mean little."
        )
    labels, items = _describe_items(sides)
    sizes = [int(side.tensor.shape[1]) for side in sides for _ in range(len(side))]
    item = np.repeat(np.arange(len(items)), sizes)
    slot = np.concatenate([np.arange(size) for size in sizes])
    lines = _join_pairs(vectors, item, items) if pairs else np.empty((0, 2), np.int64)
    return Map(positions.numpy().astype(np.float32), item, slot, items, labels, lines, method, [*notes, note])


def project(vectors: Tensor) -> tuple[Tensor, npt.NDArray[np.float64]]:
    """(n, d) -> the vectors on their first principal components, at least two, and each one's share of the variance."""
    from sklearn.decomposition import PCA

    count = min(COMPONENTS, *vectors.shape)
    if len(vectors) < 2:  # no variance
        return torch.zeros(len(vectors), max(2, count)), np.zeros(count)
    pca = PCA(count, svd_solver="covariance_eigh")
    with np.errstate(invalid="ignore"):  # 0 of 0 variance, where all vectors are one
        projected = torch.from_numpy(pca.fit_transform(vectors.double().numpy())).float()
    share = np.nan_to_num(pca.explained_variance_ratio_)
    return torch.nn.functional.pad(projected, (0, max(0, 2 - count))), share


def _sample(sides: list[MapPoints], limit: int, seed: int) -> tuple[list[MapPoints], list[str]]:
    total = sum(side.elements for side in sides)
    if total <= limit:
        return sides, []
    cost = Counter[str]()
    for side in sides:
        for partner in side.partners or side.ids:
            cost[partner] += int(side.tensor.shape[1])
    order = list(cost)
    np.random.default_rng(seed).shuffle(order)
    chosen, used = set[str](), 0
    for partner in order:
        if used + cost[partner] <= limit or not chosen:
            chosen.add(partner)
            used += cost[partner]
    rows = [[row for row, partner in enumerate(side.partners or side.ids) if partner in chosen] for side in sides]
    sampled = [side.select(own) for side, own in zip(sides, rows, strict=True) if own]
    return sampled, [f"{used:,} of {total:,} elements: a random choice of items, images together with their captions."]


def _describe_items(sides: Sequence[MapPoints]) -> tuple[list[str], list[MapItem]]:
    """The labels with a colour, and the items."""
    counts = Counter(label for side in sides for own in side.labels for label in dict.fromkeys(own))
    common = [label for label, _ in counts.most_common(MOST_LABELS)]
    items = []
    for side in sides:
        labels: list[str | None] = [None] * len(side)
        if counts and side.labels:
            labels = [next((label for label in common if label in own), OTHER) for own in side.labels]
        columns = side.ids, side.texts or side.ids, side.partners or side.ids, labels
        items += [
            MapItem(own, side.side, text, partner, label) for own, text, partner, label in zip(*columns, strict=True)
        ]
    rest = [OTHER] if any(item.label == OTHER for item in items) else []
    return common + rest, items


def _join_pairs(vectors: Tensor, item: Ints, items: Sequence[MapItem]) -> Ints:
    """(p, 2): of every caption and its image, the two elements that are nearest to each other."""
    first = np.searchsorted(item, np.arange(len(items) + 1))
    images = {each.partner: i for i, each in enumerate(items) if each.side == "image"}
    lines = []
    for text, each in enumerate(items):
        image = images.get(each.partner)
        if each.side == "text" and image is not None:
            own, other = slice(first[text], first[text + 1]), slice(first[image], first[image + 1])
            best = int((vectors[other] @ vectors[own].t()).argmax())
            size = first[text + 1] - first[text]
            lines.append((first[image] + best // size, first[text] + best % size))
    return np.array(lines, np.int64).reshape(-1, 2)
