"""A validation split that shares content with the training split flatters every figure measured on it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np

from polysem.data.collection import Collection, DataError, Item, open_features
from polysem.training.diagnosis import Finding

SHARED_CAPTIONS = 0.25
"""Share of validation captions that may also stand in the training split. People write "a dog runs" more than once:
Flickr8k shares 0.7 %, the short sentences of generated scenes 7 to 8 %. A split that was copied shares most of them."""
CAPTIONS_AT_LEAST = 20
"""Shared captions under which a share says nothing: in a tiny split a few common sentences are a quarter."""

_NAMED = 3
_THREADS = 4
_ADVICE = "Figures on this split are flattered. Take {what} out of one split (`polysem data check` lists pictures), or "
_OTHER = "validate on another: --set data.val=…"


def leaks(train: Collection, val: Collection) -> list[Finding]:
    """What `val` shares with `train`: ids, pictures or features to the byte, or a suspicious share of its captions.

    Content is read only where ids differ and something alike (a file's size, a first token) is on the other side. What
    cannot be read is passed over: it is not this check's to report.
    """
    return [*_same_ids(train, val), *_same_content(train, val), *_same_captions(train, val)]


def _same_ids(train: Collection, val: Collection) -> Iterable[Finding]:
    known = {item.id for item in train}
    shared = [item.id for item in val if item.id in known]
    if shared:
        says = f"{len(shared):,} of {len(val):,} validation items are training items: {_examples(shared)}."
        yield _finding(says, "them")


def _same_content(train: Collection, val: Collection) -> Iterable[Finding]:
    known = {item.id for item in train}
    others = [item for item in val if item.id not in known]
    there, here = _keys(train), _keys(others)
    both = set(there.values()) & set(here.values())

    def digests(items: Iterable[Item], keys: dict[str, Hashable]) -> dict[str, bytes]:
        chosen = [item for item in items if item.id in keys and keys[item.id] in both]
        with ThreadPoolExecutor(_THREADS) as pool:
            found = zip(chosen, pool.map(_digest, chosen), strict=True)
            return {item.id: digest for item, digest in found if digest is not None}

    seen = {digest: name for name, digest in digests(train, there).items()}
    shared = [(name, seen[digest]) for name, digest in digests(others, here).items() if digest in seen]
    if shared:
        pairs = _examples([f"{name} = {twin}" for name, twin in shared])
        says = f"{len(shared):,} of {len(val):,} validation items have the very content of a training item: {pairs}."
        yield _finding(says, "them")


def _same_captions(train: Collection, val: Collection) -> Iterable[Finding]:
    known = {_normal(caption) for caption in train.captions}
    captions = val.captions
    shared = [caption for caption in captions if _normal(caption) in known]
    if len(shared) >= CAPTIONS_AT_LEAST and len(shared) > SHARED_CAPTIONS * len(captions):
        common = [caption for caption, _ in Counter(shared).most_common(_NAMED)]
        says = (
            f"{len(shared) / len(captions):.0%} of the validation captions ({len(shared):,} of {len(captions):,}) also "
            f"stand in the training split, e.g. {_examples([repr(caption[:60]) for caption in common])}; "
            "a few in a hundred are usual."
        )
        yield _finding(says, "the shared ones")


def _finding(says: str, what: str) -> Finding:
    return Finding("leaking validation set", says, _ADVICE.format(what=what) + _OTHER, 0)


def _examples(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")


def _normal(caption: str) -> str:
    return " ".join(caption.casefold().split())


# ------------------------------------------------------------------------------------------------- content of items


def _keys(items: Iterable[Item]) -> dict[str, Hashable]:
    """By id, what is quickly had and must agree before content is worth reading: a file's size, or the shape and first
    token of features."""
    arrays = lru_cache(maxsize=16)(open_features)
    found: dict[str, Hashable] = {}
    for item in items:
        try:
            if item.media.is_features:
                features = _row(item, arrays)
                found[item.id] = (features.shape, features[:1].tobytes())
            else:
                found[item.id] = item.media.path.stat().st_size
        except (OSError, DataError, IndexError):
            continue
    return found


def _digest(item: Item) -> bytes | None:
    try:
        if item.media.is_features:
            return _blake(_row(item, open_features).tobytes()).digest()
        with item.media.path.open("rb") as file:  # in pieces: a video may be larger than the memory
            return hashlib.file_digest(file, _blake).digest()
    except (OSError, DataError, IndexError):
        return None


def _blake(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)


def _row(item: Item, arrays: Callable[[Path], np.ndarray]) -> np.ndarray:
    array = arrays(item.media.path)
    return array if item.media.row is None else array[item.media.row]
