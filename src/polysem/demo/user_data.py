"""The user's own pictures: whether a model can be trained on them, and where what is made of them is kept."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from polysem.data.collection import Collection
from polysem.data.readers import open_collection
from polysem.errors import InputError

FEWEST = 40
"""Pictures with captions that are worth training on."""


@dataclass(frozen=True)
class UserData:
    """A collection of the user's. folder: the name for what is made of it. why_not: why no model is trained on it."""

    source: Path
    collection: Collection
    folder: str
    why_not: str | None


def open_user_data(data: str | Path) -> UserData:
    """The collection at this path."""
    path = Path(os.path.abspath(Path(data).expanduser()))  # "." has no name of its own
    collection = open_collection(path)
    if collection.kind != "image":
        raise InputError(
            f"{data} is a collection of {collection.kind}; the demo takes pictures: a folder of them will do."
        )
    why_not = _why_not(collection)
    # A model knows what it learned from: other captions make another one. An index is brought up to date in its place.
    mark = hashlib.sha256(str(path).encode(errors="surrogateescape"))
    if why_not is None:
        mark.update(_content(collection))
    return UserData(Path(data), collection, f"{collection.name}-{mark.hexdigest()[:8]}", why_not)


def _why_not(collection: Collection) -> str | None:
    captioned = sum(bool(item.captions) for item in collection)
    if captioned < FEWEST:
        return f"{captioned:,} of its {len(collection):,} pictures have captions, and learning takes {FEWEST} or more"
    if collection.has_splits and not {"train", "val"} <= collection.splits.keys():
        return f"its splits are {', '.join(collection.splits)}, and learning takes train and val"
    return None


def _content(collection: Collection) -> bytes:
    """Changes when an id, a caption, a split or a picture does."""
    content = hashlib.sha256()
    for item in collection:
        try:
            status = item.media.path.stat()
            picture = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            picture = "missing"
        text = "\0".join([item.id, item.split or "", picture, *item.captions])
        content.update(text.encode(errors="surrogatepass") + b"\n")
    return content.digest()
