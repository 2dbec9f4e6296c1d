"""Single files as a collection: those that an index knows, with all that it knows of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from polysem.data.collection import Collection, Item, Media
from polysem.data.video import VideoMetadata, is_video
from polysem.search.backend import Backend
from polysem.search.filters import And, Compare, Field, In
from polysem.search.store.entries import is_unicode


def pictures(backend: Backend, paths: Iterable[str | Path]) -> Collection:
    """See `Index.pictures`."""
    once: dict[str, Path] = {}
    for path in paths:
        once.setdefault(os.path.abspath(path), Path(path))
    kind = "video" if once and all(map(is_video, once.values())) else "image"
    return Collection("pictures", kind, [_picture(backend, path) for path in once.values()])


def _picture(backend: Backend, path: Path) -> Item:
    media, name, whole = Media(path.parent, path.name), path.as_posix(), Path(os.path.abspath(path))
    facts = VideoMetadata(path) if is_video(path) else {}
    if not is_unicode(str(whole)):  # the index cannot know it; adding it says why
        return Item(name, media, metadata=facts)
    # As it was added: with the ".." of a collection's path, or without.
    written = In(Field(("path",), built_in=True), (str(path.absolute()), str(whole)))
    same = And((written, Compare(Field(("side",), built_in=True), "=", "image")))
    known = backend.find(backend.sample("image", 1, where=same), "image")
    if not known:
        taken = bool(backend.find([name], "image"))
        return Item(whole.as_posix() if taken else name, media, metadata=facts)
    (item,) = known
    if item.path is not None:
        media = Media(Path(item.path).parent, Path(item.path).name)
    texts = sorted(backend.find(backend.captions_of([item.id]), "text"), key=lambda text: _number(text.id))
    captions = tuple(text.caption for text in texts if text.caption is not None)
    if not captions and item.caption is not None:
        captions = (item.caption,)
    return Item(item.id, media, captions, tuple(item.labels), metadata={**item.metadata, **facts})


def _number(caption: str) -> tuple[int, str]:
    """What orders id#0, id#1, … id#10."""
    number = caption.rpartition("#")[2]
    return int(number) if number.isdecimal() else 0, caption
