"""Ids of files: conflicts between two files with one id, and single files under the ids they are indexed with.

Adding an id again replaces its item. That is right where the same file has changed or moved: the indexed file is gone,
or has the same content. Where both files exist and differ, as `1.jpg` of two folders, it is a conflict.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from polysem.data.collection import Collection, Item, Media
from polysem.data.video import VideoMetadata, is_video
from polysem.errors import InputError
from polysem.search.backend import IndexReader
from polysem.search.filters import And, Compare, Field, In
from polysem.search.store.entries import is_unicode

_BLOCK = 1 << 13

Paths = Callable[[Iterable[str]], dict[str, str | None]]
"""Ids of images -> the paths of those that are in the index."""


class IdConflict(NamedTuple):
    """A conflict. there: the file that has the id, indexed or earlier in the same call. given: another file with it."""

    id: str
    there: str
    given: str
    source: str


def find_conflicts(collections: Sequence[Collection], known: Paths) -> Iterator[IdConflict]:
    """Every item that would replace a different file. Features have the ids of their data set, and may."""
    taken: dict[str, str] = {}
    for collection in collections:
        given = {item.id: str(item.media.path.absolute()) for item in collection if not item.media.is_features}
        ids = [key for key in given if is_unicode(key)]
        for start in range(0, len(ids), _BLOCK):
            some = ids[start : start + _BLOCK]
            indexed = known(some)
            for key in some:
                for there in (taken.get(key), indexed.get(key)):
                    if there is not None and _differ(there, given[key]):
                        yield IdConflict(key, there, given[key], collection.name)
                        break
        if len(collections) > 1:
            taken |= given


def refuse_conflicts(found: Iterable[IdConflict]) -> None:
    """Raise if there are any, with what to do about it."""
    if conflicts := list(found):
        key, there, given, source = conflicts[0]
        many = (
            f"{len(conflicts):,} items of {source} have ids" if len(conflicts) > 1 else f"An item of {source} has an id"
        )
        raise InputError(
            f"{many} that other files have, e.g. {key!r:.80} is {there}, not {given}. Nothing was added. "
            f"Add {source} by itself with `--prefix {source}/`, which is put before its ids (then and whenever it is "
            "brought up to date), or give --replace if its items are to take the place of the others."
        )


def add_prefix(collection: Collection, prefix: str) -> Collection:
    """The collection with something before each id."""
    items = [replace(item, id=prefix + item.id) for item in collection]
    return replace(collection, items=items)


def _differ(there: str, given: str) -> bool:
    if there == given or not os.path.isfile(there):
        return False
    try:
        return not os.path.samefile(there, given) and not filecmp.cmp(there, given, shallow=False)
    except OSError:  # reading it to encode it says what is wrong
        return False


def collect_files(index: IndexReader, paths: Iterable[str | Path]) -> Collection:
    """See `Index.pictures`."""
    once: dict[str, Path] = {}
    for path in paths:
        once.setdefault(os.path.abspath(path), Path(path))
    kind = "video" if once and all(map(is_video, once.values())) else "image"
    return Collection("pictures", kind, [_as_item(index, path) for path in once.values()])


def _as_item(index: IndexReader, path: Path) -> Item:
    media, name, whole = Media(path.parent, path.name), path.as_posix(), Path(os.path.abspath(path))
    facts = VideoMetadata(path) if is_video(path) else {}
    if not is_unicode(str(whole)):  # it cannot be indexed; adding it says why
        return Item(name, media, metadata=facts)
    # As it was added: with the ".." of a collection's path, or without.
    written = In(Field(("path",), built_in=True), (str(path.absolute()), str(whole)))
    same = And((written, Compare(Field(("side",), built_in=True), "=", "image")))
    known = index.find(index.sample("image", 1, where=same), "image")
    if not known:
        taken = bool(index.find([name], "image"))
        return Item(whole.as_posix() if taken else name, media, metadata=facts)
    (item,) = known
    if item.path is not None:
        media = Media(Path(item.path).parent, Path(item.path).name)
    texts = sorted(index.find(index.caption_ids([item.id]), "text"), key=lambda text: _caption_number(text.id))
    captions = tuple(text.caption for text in texts if text.caption is not None)
    if not captions and item.caption is not None:
        captions = (item.caption,)
    return Item(item.id, media, captions, tuple(item.labels), metadata={**item.metadata, **facts})


def _caption_number(caption: str) -> tuple[int, str]:
    """What orders id#0, id#1, … id#10."""
    number = caption.rpartition("#")[2]
    return int(number) if number.isdecimal() else 0, caption
