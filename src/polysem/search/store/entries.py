"""What is added to an index, and the checks that keep what cannot be found again out of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from polysem.errors import InputError, kind
from polysem.search.store.manifest import Manifest

Side = Literal["image", "text"]
SIDES: tuple[Side, ...] = get_args(Side)
_BLOCK = 4096
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Entry:
    """An item as the user knows it.

    id: the user's own, unique on its side. metadata: what filters ask for, as JSON. hash: of the content, so that an
    unchanged item need not be encoded again.
    """

    id: str
    path: str | None = None
    caption: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[str] = ()
    hash: str | None = None


@dataclass(frozen=True)
class Batch:
    """Items of one side with their vectors (n, K, D), and arrays of n rows that an engine keeps beside them.

    frames: of videos, for each item the sets (m, K, D) of its frames at even distances in time, or None; empty where no
    item has any.
    """

    side: Side
    entries: Sequence[Entry]
    vectors: NDArray[Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    frames: Sequence[NDArray[Any] | None] = ()


def checked(batch: Batch, manifest: Manifest) -> Batch:
    """The batch with its vectors as they are stored, or an error that names the first item to blame."""
    if batch.side not in manifest.sets:
        raise InputError(f"This index holds {' and '.join(manifest.sets)}, got the side {batch.side!r}.")
    vectors = np.asarray(batch.vectors)
    wanted = (len(batch.entries), manifest.sets[batch.side], manifest.dim)
    if vectors.shape != wanted or not np.issubdtype(vectors.dtype, np.floating):
        raise InputError(
            f"{len(batch.entries)} items of the side {batch.side!r} need vectors of shape {wanted}, got "
            f"{kind(vectors)}. Encode them with the model the index was made with."
        )
    for name, array in batch.arrays.items():
        if name == "vectors" or len(array) != len(batch.entries):
            raise InputError(f"Array {name!r} needs a row for each of {len(batch.entries)} items, got {kind(array)}.")
    twice = next((key for key, count in Counter(entry.id for entry in batch.entries).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"Item {twice!r} is given twice. Ids name items: make them unique.")
    _check_frames(batch, manifest)
    return Batch(batch.side, batch.entries, _stored(vectors, batch.entries, manifest), batch.arrays, batch.frames)


def _check_frames(batch: Batch, manifest: Manifest) -> None:
    if batch.frames and len(batch.frames) != len(batch.entries):
        raise InputError(
            f"{len(batch.entries)} items need as many sets of frames or none, got {len(batch.frames)}. Give None for "
            "an item without."
        )
    for entry, frames in zip(batch.entries, batch.frames, strict=False):
        if frames is None:
            continue
        given = np.asarray(frames)
        wanted = (manifest.sets[batch.side], manifest.dim)
        if given.ndim != 3 or not len(given) or given.shape[1:] != wanted or given.dtype.kind != "f":
            raise InputError(
                f"Item {entry.id!r:.80}: its frames are sets (frames, {wanted[0]}, {wanted[1]}), got {kind(given)}."
            )
        if not np.isfinite(given).all() or np.abs(given).max() > 2:
            raise InputError(
                f"Item {entry.id!r:.80}: its frames hold NaN, infinity or what is no unit vector, and nothing of the "
                "batch was added. Look at the item's file; leave the item out if it is to blame."
            )


def _stored(vectors: NDArray[Any], entries: Sequence[Entry], manifest: Manifest) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        stored = vectors.astype(manifest.stored, copy=False)
    for start in range(0, len(stored), _BLOCK):  # in blocks: a check must not double the memory
        block = stored[start : start + _BLOCK]
        finite = np.isfinite(block).all(axis=(1, 2))
        usable = finite & (block != 0).any(axis=2).all(axis=1)
        if usable.all():
            continue
        row = int(np.argmin(usable))
        what = (
            "a vector of zeros, which points nowhere"
            if finite[row]
            else f"NaN, infinity or more than {manifest.dtype} holds"
        )
        raise InputError(
            f"Item {entries[start + row].id!r} has {what}, and nothing of the batch was added. Look at the item's file "
            "and at the model's weights; leave the item out if it is to blame."
        )
    return stored


def as_rows(entries: Iterable[Entry]) -> Iterator[tuple[str, str | None, str | None, str, str, str | None]]:
    """(id, path, caption, metadata, labels, hash) of each entry as the database keeps them."""
    for entry in entries:
        key = _text("id", entry.id, entry.id)
        if not key:
            raise InputError("An item has an empty id. Give every item an id of at least one character.")
        if isinstance(entry.labels, str):
            raise InputError(f"Item {key!r}: labels are a list of texts, got the text {entry.labels!r}.")
        labels = [_text("label", label, key) for label in entry.labels]
        yield (
            key,
            None if entry.path is None else _text("path", entry.path, key),
            None if entry.caption is None else _text("caption", entry.caption, key),
            _metadata(entry.metadata, key),
            _JSON.encode(labels),
            None if entry.hash is None else _text("hash", entry.hash, key),
        )


def is_unicode(text: str) -> bool:
    """Whether a text can be written down: the names of files in an old encoding cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(what: str, value: object, key: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"Item {key!r}: its {what} must be a text, got {value!r:.80} ({kind(value)}).")
    if "\0" in value:
        raise InputError(f"Item {key!r}: its {what} holds the character NUL, which no database finds again. Remove it.")
    if not is_unicode(value):
        raise InputError(
            f"Item {key!r}: its {what} {value!r:.80} is no valid Unicode, as names of files in an old encoding are. "
            "Rename the file, or give the item another text."
        )
    return value


def _metadata(value: Mapping[str, Any], key: str) -> str:
    try:
        _check_json(value, key)
        return _JSON.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Item {key!r}: its metadata must be JSON ({error}).") from None


def _check_json(value: Any, key: str) -> None:
    """Refuse what JSON in a database would change: such a value could never be found again."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str) or not name or any(sign in '"\\' or sign < " " for sign in name):
                raise InputError(
                    f"Item {key!r}: the metadata name {name!r} must be a text without quotation marks, backslashes and "
                    "control characters, so that a filter can name it."
                )
            _text("metadata", name, key)
            _check_json(inner, key)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_json(inner, key)
    elif isinstance(value, str):
        _text("metadata", value, key)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(f"Item {key!r}: the metadata number {value} has more than 64 bits. Give it as a text.")
