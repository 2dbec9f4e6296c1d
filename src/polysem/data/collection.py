"""A collection: items with their captions, labels and split, and what is wrong with it. Content stays on disk."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polysem._deprecated import renamed_attribute
from polysem.errors import InputError, unknown

HELD_OUT = 0.1
HELD_OUT_NAME = f"{HELD_OUT:.0%} held out by id"
"""What the stamp calls them."""
Side = Literal["image", "text"]
Content = Literal["pictures", "videos", "features"]
Severity = Literal["error", "skip", "note"]
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Media:
    """Where an item's content lies: a picture, a video, or a .npy file of features.

    Args:
        folder: of the file; kept apart because a hundred thousand items share one.
        row: which entry of the first axis of a .npy file is this item's; None if the whole file is.
    """

    folder: Path
    name: str
    row: int | None = None

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def is_features(self) -> bool:
        return self.name.endswith(".npy")


@dataclass(frozen=True, slots=True)
class Box:
    """Something known to be at a place of the picture: pixels from the top left, right and bottom exclusive. group,
    colour: of the thing, where the data set tells."""

    name: str
    x0: float
    y0: float
    x1: float
    y1: float
    group: str | None = None
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to find: a picture, a video or precomputed features, with what is said of it.

    caption_ids: what the data set calls each caption, in the same order; empty if it has no names for them.
    metadata: what else is known of it, such as {"year": 2021}, or the "duration" of a raw video in seconds: for
    filters of a search, without effect on a model.
    """

    id: str
    media: Media
    captions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    split: str | None = None
    boxes: tuple[Box, ...] = ()
    caption_ids: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True)
class Skipped:
    """An entry that a reader left out, and why. Nothing is left out in silence."""

    what: str
    why: str


@dataclass(frozen=True, eq=False)
class Collection:
    """A data set: items in order. `collection[i]` is an `Item`; `collection.split("val")` keeps one split.

    Args:
        kind: "image", "features" or "video".
        items: with ids that differ.
        skipped: what the reader left out.
        credit: whom to name, and which licence, wherever the pictures are shown.

    Example:
        >>> from pathlib import Path
        >>> from polysem.data import Collection, Item, Media
        >>> names = ("dog.jpg", "cat.jpg", "owl.jpg")
        >>> items = [Item(name, Media(Path("photos"), name), (f"a {name[:3]}",), split="val") for name in names]
        >>> collection = Collection("photos", "image", items)
        >>> len(collection.split("val")), collection.captions
        (3, ['a dog', 'a cat', 'a owl'])
    """

    name: str
    kind: str
    items: Sequence[Item]
    skipped: tuple[Skipped, ...] = field(default=())
    credit: str = ""

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(item.id for item in self.items).items() if count > 1]
        if repeated:
            what = f"{len(repeated)} id(s) occur more than once, e.g. {repeated[:3]}"
            raise InputError(f"{self.name}: {what}. Ids name items: make them unique.")

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    @property
    def content(self) -> Content:
        """What its files hold. A collection of videos may be of raw ones or of their frames' features."""
        if self.kind == "features" or (len(self) and all(item.media.is_features for item in self.items)):
            return "features"
        return "videos" if self.kind == "video" else "pictures"

    @property
    def splits(self) -> dict[str, int]:
        """Number of items of each split, in order of first appearance; items without one count as "all"."""
        return dict(Counter(item.split or "all" for item in self.items))

    def split(self, *names: str) -> Collection:
        """The items of these splits. Asking for one that does not exist lists those that do."""
        known = self.splits
        for name in names:
            if name not in known:
                raise unknown(f"split of {self.name}", name, known)
        return self.where([i for i, item in enumerate(self.items) if (item.split or "all") in names])

    def where(self, indices: Sequence[int]) -> Collection:
        """The items at these positions."""
        return replace(self, items=[self.items[i] for i in indices])

    def with_captions(self, count: int, who: str) -> Collection:
        """Every item with its first `count` captions. who: says why, to a user whose items have fewer."""
        short = [item.id for item in self.items if len(item.captions) < count]
        if short:
            few = f"{len(short)} of {self.name} have fewer, e.g. {short[0]!r}"
            raise InputError(f"{who} takes {count} captions of every item; {few}.")
        cut = [replace(item, captions=item.captions[:count], caption_ids=item.caption_ids[:count]) for item in self]
        return replace(self, items=cut)

    @property
    def has_splits(self) -> bool:
        return any(item.split is not None for item in self.items)

    def hold_out(self) -> tuple[Collection, Collection]:
        """Split off a tenth of a collection without splits: (held out, rest), by the items' ids, so always the same."""
        chosen = [zlib.crc32(item.id.encode()) % 1000 < 1000 * HELD_OUT for item in self.items]
        held, rest = ([i for i, taken in enumerate(chosen) if taken is part] for part in (True, False))
        return self.where(held), self.where(rest)

    held_out = renamed_attribute("held_out", "hold_out")

    @property
    def captions(self) -> list[str]:
        """Every caption, item by item."""
        return [caption for item in self.items for caption in item.captions]

    @property
    def caption_items(self) -> np.ndarray:
        """For each of `captions`, the position of its item."""
        return np.repeat(np.arange(len(self)), [len(item.captions) for item in self.items])

    @property
    def label_names(self) -> list[str]:
        """Every label that occurs, in alphabetical order."""
        return sorted({label for item in self.items for label in item.labels})


def caption_id(item: str, number: int) -> str:
    """The id of a caption: that of its item and the caption's number there, from 0."""
    return f"{item}#{number}"


def normalise_caption(caption: str) -> str:
    """A caption without what does not change its meaning: case, spacing, the final full stop."""
    return " ".join(caption.casefold().split()).rstrip(" .")


class DataError(InputError):
    """Data that must be corrected before it is used."""


@dataclass(frozen=True)
class Problem:
    """Something wrong with a collection.

    Args:
        kind: a short name to count by.
        where: the file, item or line.
        severity: an "error" stops a reader, a "skip" leaves the entry out, a "note" is worth knowing.
    """

    kind: str
    where: str
    message: str
    severity: Severity


class Problems:
    """Collects what is wrong with a collection while it is read. strict: the first error is raised."""

    def __init__(self, strict: bool = True) -> None:
        self.strict = strict
        self.entries: list[Problem] = []

    def error(self, kind: str, where: object, message: str) -> None:
        if self.strict:
            raise DataError(f"{where}: {message}")
        self.entries.append(Problem(kind, str(where), message, "error"))

    def skip(self, kind: str, where: object, message: str) -> None:
        self.entries.append(Problem(kind, str(where), message, "skip"))

    def note(self, kind: str, where: object, message: str) -> None:
        self.entries.append(Problem(kind, str(where), message, "note"))

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        return tuple(Skipped(p.where, p.message) for p in self.entries if p.severity == "skip")

    def counts(self) -> dict[tuple[str, Severity], int]:
        return dict(Counter((p.kind, p.severity) for p in self.entries))


def open_features(path: Path) -> np.ndarray:
    """A memory-mapped float array. Pickled objects are refused: loading one can run anything."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not a readable .npy array ({error}).") from None
    if not np.issubdtype(array.dtype, np.floating):
        raise DataError(f"{path}: expected floating-point features, got {array.dtype}.")
    return array


_mapped = lru_cache(maxsize=16)(open_features)


def load_features(media: Media) -> np.ndarray:
    """(n, dim) of one item: a view of the mapped file, checked to be finite."""
    array = _mapped(media.path)
    features = array if media.row is None else array[media.row]
    if features.ndim != 2 or 0 in features.shape:
        raise DataError(f"{media.path}: expected (tokens, dim) for an item, got shape {features.shape}.")
    if not bool(np.isfinite(features).all()):
        row = "" if media.row is None else f", row {media.row}"
        raise DataError(f"{media.path}{row}: features hold NaN or infinity. Extract this item again.")
    return features
