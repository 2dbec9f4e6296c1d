"""Ids that two different pictures lay claim to: `1.jpg` of one folder must not silently take the place of another's.

Adding an id again replaces its item. That is meant where the same file has changed, or has moved: the file that the
index knows is gone, or has the same content. It is not meant where both files are there and differ.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from polysem.data.collection import Collection
from polysem.errors import InputError
from polysem.search.store.entries import is_unicode

_BLOCK = 1 << 13

Paths = Callable[[Iterable[str]], dict[str, str | None]]
"""Ids of images -> the paths of those that are in the index."""


class Clash(NamedTuple):
    """there: the file that has the id, in the index or earlier in the same call. given: another file with that id."""

    id: str
    there: str
    given: str
    source: str


def clashes(collections: Sequence[Collection], known: Paths) -> Iterator[Clash]:
    """Every item that would replace a different picture. Features have the ids of their data set, and may."""
    taken: dict[str, str] = {}
    for collection in collections:
        given = {item.id: str(item.media.path.absolute()) for item in collection if not item.media.is_features}
        ids = [key for key in given if is_unicode(key)]
        for start in range(0, len(ids), _BLOCK):
            some = ids[start : start + _BLOCK]
            held = known(some)
            for key in some:
                for there in (taken.get(key), held.get(key)):
                    if there is not None and _differ(there, given[key]):
                        yield Clash(key, there, given[key], collection.name)
                        break
        if len(collections) > 1:
            taken |= given


def refuse(found: Iterable[Clash]) -> None:
    """Raise if there are any, with what to do about it."""
    clash = list(found)
    if clash:
        key, there, given, source = clash[0]
        many = f"{len(clash):,} items of {source} have ids" if len(clash) > 1 else f"An item of {source} has an id"
        raise InputError(
            f"{many} that other pictures have, e.g. {key!r:.80} is {there}, not {given}. Nothing was added. "
            f"Add {source} by itself with `--prefix {source}/`, which is put before its ids (then and whenever it is "
            "brought up to date), or give --replace if its items are to take the place of the others."
        )


def prefixed(collection: Collection, prefix: str) -> Collection:
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
