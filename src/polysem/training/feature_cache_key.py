"""What the features of a store were made from, so that they are not taken for those of other content."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from polysem import atomic_write
from polysem.data.collection import Collection
from polysem.errors import InputError

NOTE = "contents.json"
_LOOK = 4096
"""Bytes of a picture that are read: with its size, enough to tell it from another."""


def check(folder: Path, collection: Collection, takes: str) -> None:
    """Raise if an item of this collection was something else when the store was made. A store made by `polysem
    features` has no note: it is trusted."""
    known = _read(folder)
    if not known:
        return
    changed = [key for key, mark in marks(collection, takes).items() if known.get(key, mark) != mark]
    if changed:
        raise InputError(
            f"The features in {folder} were made when {len(changed)} of these items had another content, e.g. "
            f"{changed[0]!r}. Give another folder, or leave the option out."
        )


def note(folder: Path, collection: Collection, takes: str) -> None:
    """Write down what the items are now."""
    atomic_write.write_text(folder / NOTE, json.dumps({**_read(folder), **marks(collection, takes)}))


def marks(collection: Collection, takes: str) -> dict[str, int]:
    """A number for each picture or caption that changes when it does."""
    if takes == "tokens":
        return {
            f"{item.id}#{number}": zlib.crc32(caption.encode())
            for item in collection
            for number, caption in enumerate(item.captions)
        }
    return {item.id: _of_picture(item.media.path) for item in collection}


def _of_picture(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return zlib.crc32(file.read(_LOOK), path.stat().st_size)
    except OSError:
        return 0


def _read(folder: Path) -> dict[str, int]:
    try:
        found = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
