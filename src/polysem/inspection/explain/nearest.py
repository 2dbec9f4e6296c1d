"""The caption nearest to each element of an image, out of as many as there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from polysem.data import open_collection
from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.inspection.explain.explanation import Near
from polysem.models import Model
from polysem.progress import Progress

_AT_ONCE = 512


@dataclass(frozen=True)
class Captions:
    """Captions to choose from, each once. matching: those of the image in question; None if it is not known there."""

    name: str
    texts: tuple[str, ...]
    matching: frozenset[str] | None = None


def captions_of(source: Collection | Sequence[str] | str | Path, image: Path | None, split: str | None) -> Captions:
    """source: captions; a text file with one per line; or a collection, or where one lies.

    From a collection those of `split`; without one, of the split that the image is in, or all if it is in none.
    """
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        if path.is_file() and path.suffix.lower() == ".txt":
            return _checked(path.name, _lines(path))
        source = open_collection(path)
    if isinstance(source, Collection):
        return _of_collection(source, image, split)
    return _checked("the given captions", source)


def nearest(
    model: Model, vectors: Tensor, captions: Captions, count: int, progress: Progress | None
) -> tuple[tuple[Near, ...], ...]:
    """For each of an image's (K, D) vectors the `count` captions nearest to it, the nearest first.

    An element is as near to a caption as to the nearest of the caption's elements. Captions are encoded a few at a time
    and not kept.
    """
    similarity, total = model.similarity, len(captions.texts)
    elements = similarity.prepare(vectors)
    best: Tensor = elements.new_empty(len(elements), 0)
    which = torch.empty(len(elements), 0, dtype=torch.long)
    for first in range(0, total, _AT_ONCE):
        texts = similarity.prepare(model.encode_texts(list(captions.texts[first : first + _AT_ONCE])))
        items, size = texts.shape[:2]
        with torch.no_grad():
            close = similarity.closeness(elements, texts.flatten(0, 1).t()).unflatten(1, (items, size)).amax(2)
        best = torch.cat([best, close], dim=1)
        which = torch.cat([which, torch.arange(first, first + items).expand(len(elements), -1)], dim=1)
        kept = best.topk(min(count, best.shape[1]), dim=1)
        best, which = kept.values, which.gather(1, kept.indices)
        if progress is not None:
            progress("captions", first + items, total)
    return tuple(
        tuple(
            Near(captions.texts[place], value, _matches(captions, place))
            for value, place in zip(values, places, strict=True)
        )
        for values, places in zip(best.tolist(), which.tolist(), strict=True)
    )


def _matches(captions: Captions, place: int) -> bool | None:
    return None if captions.matching is None else captions.texts[place] in captions.matching


def _of_collection(collection: Collection, image: Path | None, split: str | None) -> Captions:
    own = None
    if image is not None:
        wanted = image.resolve()
        # Names first: resolving a hundred thousand paths takes seconds.
        alike = (item for item in collection if Path(item.media.name).name == wanted.name)
        own = next((item for item in alike if item.media.path.resolve() == wanted), None)
    if split is None and own is not None:
        split = own.split
    searched = collection if split is None else collection.split(split)
    name = collection.name if split is None else f"{collection.name}, {split}"
    return _checked(name, searched.captions, None if own is None else frozenset(own.captions))


def _checked(name: str, texts: Iterable[str], matching: frozenset[str] | None = None) -> Captions:
    found = tuple(dict.fromkeys(text for text in texts if text.strip()))
    if not found:
        raise InputError(
            f"There is no caption in {name}. Give a text file with one per line, or a collection with some."
        )
    return Captions(name, found, matching)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text ({error}). Give one caption per line.") from None
