"""The captions nearest to each element of an image, out of a list or a collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polysem.data import open_collection
from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.inspection.explain.explanation import NearestCaption
from polysem.models import Model
from polysem.progress import Progress

_BATCH = 512


@dataclass(frozen=True)
class CaptionPool:
    """Captions to choose from, each once. matching: those of the image in question; None if that is not known."""

    name: str
    texts: tuple[str, ...]
    matching: frozenset[str] | None = None


def open_captions(
    source: Collection | Sequence[str] | str | Path, image: Path | None, split: str | None
) -> CaptionPool:
    """The captions to choose from.

    Args:
        source: captions; a text file with one per line; or a collection, or its path.
        split: of a collection; without one, the split that the image is in, or all if it is in none.
    """
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        if path.is_file() and path.suffix.lower() == ".txt":
            try:
                return _make_pool(path.name, path.read_text(encoding="utf-8").splitlines())
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{path} cannot be read as UTF-8 text ({error}). Give one caption per line.") from None
        source = open_collection(path)
    if not isinstance(source, Collection):
        return _make_pool("the given captions", source)
    own = None
    if image is not None:
        wanted = image.resolve()
        # Names first: resolving a hundred thousand paths takes seconds.
        same_name = (item for item in source if Path(item.media.name).name == wanted.name)
        own = next((item for item in same_name if item.media.path.resolve() == wanted), None)
    if split is None and own is not None:
        split = own.split
    items = source if split is None else source.split(split)
    name = source.name if split is None else f"{source.name}, {split}"
    return _make_pool(name, items.captions, None if own is None else frozenset(own.captions))


def _make_pool(name: str, texts: Iterable[str], matching: frozenset[str] | None = None) -> CaptionPool:
    unique = tuple(dict.fromkeys(text for text in texts if text.strip()))
    if not unique:
        raise InputError(
            f"There is no caption in {name}. Give a text file with one per line, or a collection with some."
        )
    return CaptionPool(name, unique, matching)


def find_nearest_captions(
    model: Model, vectors: Tensor, captions: CaptionPool, count: int, progress: Progress | None
) -> tuple[tuple[NearestCaption, ...], ...]:
    """For each of an image's (K, D) vectors the `count` captions nearest to it, the nearest first.

    An element is as near to a caption as to the nearest of the caption's elements. Captions are encoded in batches and
    not kept.
    """
    similarity, total = model.similarity, len(captions.texts)
    elements = similarity.prepare(vectors)
    best: Tensor = elements.new_empty(len(elements), 0)
    ids = torch.empty(len(elements), 0, dtype=torch.long)
    for first in range(0, total, _BATCH):
        texts = similarity.prepare(model.encode_texts(list(captions.texts[first : first + _BATCH])))
        items, size = texts.shape[:2]
        with torch.no_grad():
            close = similarity.closeness(elements, texts.flatten(0, 1).t()).unflatten(1, (items, size)).amax(2)
        best = torch.cat([best, close], dim=1)
        ids = torch.cat([ids, torch.arange(first, first + items).expand(len(elements), -1)], dim=1)
        top = best.topk(min(count, best.shape[1]), dim=1)
        best, ids = top.values, ids.gather(1, top.indices)
        if progress is not None:
            progress("captions", first + items, total)

    def describe(number: int, closeness: float) -> NearestCaption:
        text = captions.texts[number]
        return NearestCaption(text, closeness, None if captions.matching is None else text in captions.matching)

    return tuple(tuple(map(describe, *row)) for row in zip(ids.tolist(), best.tolist(), strict=True))
