"""What a run learns from and what picks its checkpoint. The test split is never opened."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from polysem.data.collection import HELD_OUT_NAME, Collection
from polysem.data.store import FeatureStore
from polysem.errors import InputError
from polysem.recipes.schema import Data


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


def split(collection: Collection, wanted: Data) -> Splits:
    """Training and validation items, those with captions.

    Without splits a tenth is held out by id; with splits but no val, as NUS-WIDE has them, a tenth of the training
    items: the test split must not pick a checkpoint.
    """
    known = collection.splits
    if not collection.has_splits:
        (val, train), how = collection.hold_out(), HELD_OUT_NAME
    else:
        names = [name for name in wanted.train if name in known]
        if names and wanted.val not in known and wanted.val == Data().val:
            (val, train), how = collection.split(*names).hold_out(), HELD_OUT_NAME
            return _checked(train, val, how)
        for name, given in (("data.train", names), ("data.val", [wanted.val] if wanted.val in known else [])):
            if not given:
                asked = wanted.val if name == "data.val" else ", ".join(wanted.train)
                raise InputError(
                    f"{collection.name} has no split {asked}; it has {', '.join(known)}. Name one: --set {name}=…"
                )
        train, val, how = collection.split(*names), collection.split(wanted.val), wanted.val
    return _checked(train, val, how)


def _checked(train: Collection, val: Collection, how: str) -> Splits:
    splits = Splits(_with_captions(train), _with_captions(val), how)
    splits.check()
    return splits


def with_features(collection: Collection, store: FeatureStore | None) -> Collection:
    """The items that the store has: what could not be read when it was made is left out."""
    if store is None:
        return collection
    return collection.where([i for i, item in enumerate(collection) if item.id in store])


def unread(splits: Splits, store: FeatureStore | None) -> list[str]:
    """Items that no features could be made of, each with the reason."""
    if store is None:
        return []
    wanted = {item.id for part in (splits.train, splits.val) for item in part}
    return [f"{skip.what}: {skip.why}" for skip in store.skipped if skip.what in wanted]


def digest(splits: Splits, labels: bool = False) -> str:
    """Changes when an id, a caption or a split does; and, for a run that learns them, a label."""
    found = hashlib.sha256()
    for name, part in (("train", splits.train), ("val", splits.val)):
        for item in part:
            found.update("\0".join([name, item.id, *item.captions]).encode() + b"\n")
            if labels:
                found.update("\0".join(["", *item.labels]).encode() + b"\n")
    return found.hexdigest()[:16]


def _with_captions(collection: Collection) -> Collection:
    return collection.where([i for i, item in enumerate(collection) if item.captions])
