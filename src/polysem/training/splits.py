"""The training and validation items of a run, and what the two share that they should not.

The test split is never opened. A validation split that shares content with the training split flatters every figure
measured on it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from polysem.data.collection import HELD_OUT_NAME, Collection, DataError, Item, normalise_caption, open_features
from polysem.data.store import FeatureStore
from polysem.errors import InputError
from polysem.recipes.schema import Data
from polysem.training.monitoring.diagnosis import TrainingFinding

SHARED_CAPTIONS = 0.25
"""Share of validation captions that may also stand in the training split. People write "a dog runs" more than once:
Flickr8k shares 0.7 %, the short sentences of generated scenes 7 to 8 %. A split that was copied shares most of them."""
CAPTIONS_AT_LEAST = 20
"""Shared captions under which a share says nothing: in a tiny split a few common sentences are a quarter."""

_EXAMPLES = 3
_THREADS = 4


@dataclass(frozen=True)
class Splits:
    """how: where the validation items come from, for the protocol."""

    train: Collection
    val: Collection
    how: str

    def check(self, left_out: Sequence[str] = ()) -> None:
        """Raise unless there is enough to train and to validate with. left_out: what could not be read, and why."""
        if len(self.train) < 2 or not len(self.val):
            why = f" {len(left_out)} could not be read; the first is {left_out[0]}" if left_out else ""
            raise InputError(
                f"{self.train.name}: {len(self.train)} training and {len(self.val)} validation items have captions and "
                f"can be read; training needs at least two of the first and one of the second.{why} "
                "`polysem data check` lists what is wrong."
            )

    def keep_readable(self, store: FeatureStore | None) -> tuple[Splits, list[str]]:
        """Without the items that no features could be made of, and these, each with the reason."""
        if store is None:
            return self, []
        parts = self.train, self.val
        names = {item.id for part in parts for item in part}
        left_out = [f"{skip.what}: {skip.why}" for skip in store.skipped if skip.what in names]
        train, val = (part.where([i for i, item in enumerate(part) if item.id in store]) for part in parts)
        splits = Splits(train, val, self.how)
        splits.check(left_out)
        return splits, left_out

    def counts(self) -> dict[str, int]:
        """How much there is to learn from and to validate with."""
        train, val = self.train, self.val
        captions = {"train_captions": len(train.captions), "val_captions": len(val.captions)}
        return {"train": len(train), "val": len(val), **captions}

    def digest(self, labels: bool = False) -> str:
        """Changes when an id, a caption or a split does; and, for a run that learns them, a label."""
        content = hashlib.sha256()
        for name, part in (("train", self.train), ("val", self.val)):
            for item in part:
                content.update("\0".join([name, item.id, *item.captions]).encode() + b"\n")
                if labels:
                    content.update("\0".join(["", *item.labels]).encode() + b"\n")
        return content.hexdigest()[:16]


def split(collection: Collection, wanted: Data) -> Splits:
    """Training and validation items, those with captions.

    Without splits a tenth is held out by id; with splits but no val, as NUS-WIDE has them, a tenth of the training
    items: the test split must not pick a checkpoint.
    """
    known = collection.splits
    names = [name for name in wanted.train if name in known]
    if not collection.has_splits:
        (val, train), how = collection.hold_out(), HELD_OUT_NAME
    elif names and wanted.val not in known and wanted.val == Data().val:
        (val, train), how = collection.split(*names).hold_out(), HELD_OUT_NAME
    else:
        if not names or wanted.val not in known:
            key, asked = ("data.val", wanted.val) if names else ("data.train", ", ".join(wanted.train))
            there = ", ".join(known)
            raise InputError(f"{collection.name} has no split {asked}; it has {there}. Name one: --set {key}=…")
        train, val, how = collection.split(*names), collection.split(wanted.val), wanted.val
    train, val = (part.where([i for i, item in enumerate(part) if item.captions]) for part in (train, val))
    splits = Splits(train, val, how)
    splits.check()
    return splits


def find_leaks(train: Collection, val: Collection) -> list[TrainingFinding]:
    """What `val` shares with `train`: ids, pictures or features to the byte, or a suspicious share of its captions.

    Content is read only where ids differ and something alike (a file's size, a first token) is on the other side. What
    cannot be read is passed over: it is not this check's to report.
    """
    findings = []
    known = {item.id for item in train}
    shared = [item.id for item in val if item.id in known]
    if shared:
        says = f"{len(shared):,} of {len(val):,} validation items are training items: {_list_examples(shared)}."
        findings.append(_make_finding(says, "them"))
    twins = _find_twins(train, [item for item in val if item.id not in known])
    if twins:
        pairs = _list_examples([f"{name} = {twin}" for name, twin in twins])
        says = f"{len(twins):,} of {len(val):,} validation items have the very content of a training item: {pairs}."
        findings.append(_make_finding(says, "them"))
    captions, known = val.captions, {normalise_caption(caption) for caption in train.captions}
    shared = [caption for caption in captions if normalise_caption(caption) in known]
    if len(shared) >= CAPTIONS_AT_LEAST and len(shared) > SHARED_CAPTIONS * len(captions):
        common = [caption for caption, _ in Counter(shared).most_common(_EXAMPLES)]
        says = (
            f"{len(shared) / len(captions):.0%} of the validation captions ({len(shared):,} of {len(captions):,}) also "
            f"stand in the training split, e.g. {_list_examples([repr(caption[:60]) for caption in common])}; "
            "a few in a hundred are usual."
        )
        findings.append(_make_finding(says, "the shared ones"))
    return findings


def _make_finding(says: str, what: str) -> TrainingFinding:
    advice = (
        f"Figures on this split are flattered. Take {what} out of one split (`polysem data check` lists pictures), or "
        "validate on another: --set data.val=…"
    )
    return TrainingFinding("leaking validation set", says, advice, 0)


def _list_examples(names: list[str]) -> str:
    return ", ".join(names[:_EXAMPLES]) + (" …" if len(names) > _EXAMPLES else "")


def _find_twins(train: Collection, val: Sequence[Item]) -> list[tuple[str, str]]:
    """Validation items with the content of a training item: the ids of both."""
    arrays = lru_cache(maxsize=16)(open_features)

    def key(item: Item, quick: bool = False) -> Hashable:
        """A hash of the content; quick: what must agree, a file's size, or the shape and first token of features."""
        try:
            if item.media.is_features:
                whole = arrays(item.media.path)
                array = whole if item.media.row is None else whole[item.media.row]
                return (array.shape, array[:1].tobytes()) if quick else hashlib.blake2b(array.tobytes()).digest()
            if quick:
                return item.media.path.stat().st_size
            with item.media.path.open("rb") as file:  # in pieces: a video may be larger than the memory
                return hashlib.file_digest(file, hashlib.blake2b).digest()
        except (OSError, DataError, IndexError):
            return None

    sides = [[(item, key(item, quick=True)) for item in items] for items in (list(train), val)]
    alike = set.intersection(*({quick for _, quick in side} for side in sides)) - {None}
    of_train, of_val = ([item for item, quick in side if quick in alike] for side in sides)
    with ThreadPoolExecutor(_THREADS) as pool:
        seen = dict(zip(pool.map(key, of_train), (item.id for item in of_train), strict=True))
        hashes = list(pool.map(key, of_val))
    seen.pop(None, None)
    return [(item.id, seen[content]) for item, content in zip(of_val, hashes, strict=True) if content in seen]
