"""The user's own pictures: whether they can be learned from, and where what is made of them is kept."""

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
class Own:
    """place: name of the folder for what is made of it. why_not: why no model learns from it, None if one can."""

    source: Path
    collection: Collection
    place: str
    why_not: str | None


def opened(data: str | Path) -> Own:
    """The collection at this path."""
    path = Path(os.path.abspath(Path(data).expanduser()))  # "." has no name of its own
    found = open_collection(path)
    if found.kind != "image":
        raise InputError(f"{data} is a collection of {found.kind}; the demo takes pictures: a folder of them will do.")
    why_not = _why_not(found)
    # A model knows what it learned from: other captions make another one. An index is brought up to date in its place.
    mark = hashlib.sha256(str(path).encode(errors="surrogateescape"))
    if why_not is None:
        mark.update(_content(found))
    return Own(Path(data), found, f"{found.name}-{mark.hexdigest()[:8]}", why_not)


def _why_not(own: Collection) -> str | None:
    captioned = sum(bool(item.captions) for item in own)
    if captioned < FEWEST:
        return f"{captioned:,} of its {len(own):,} pictures have captions, and learning takes {FEWEST} or more"
    if own.has_splits and not {"train", "val"} <= own.splits.keys():
        return f"its splits are {', '.join(own.splits)}, and learning takes train and val"
    return None


def _content(own: Collection) -> bytes:
    """Changes when an id, a caption, a split or a picture does."""
    found = hashlib.sha256()
    for item in own:
        try:
            status = item.media.path.stat()
            picture = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            picture = "missing"
        said = "\0".join([item.id, item.split or "", picture, *item.captions])
        found.update(said.encode(errors="surrogatepass") + b"\n")
    return found.digest()
