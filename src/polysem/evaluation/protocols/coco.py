"""COCO's ids: which images and captions a gallery holds, and the annotation files of the package `eccv-caption`.

The package itself is not imported: it warns about what it misses, and only its data files are wanted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from polysem.data.collection import Collection, Item
from polysem.environment.packages import install_command
from polysem.errors import InputError
from polysem.evaluation.relevance import Ints

BY_POSITION = "images and captions matched by position, in Karpathy's test order"
BY_CAPTION_ORDER = "captions matched by their order within the image"

Positives = Mapping[int, Sequence[int]]
"""Ids of right answers by the query's id."""


@dataclass(frozen=True, eq=False)
class CocoTestSplit:
    """The images of the test split in Karpathy's order, (I,), and the captions that count, (I, 5), ascending."""

    images: Ints
    captions: Ints

    @cached_property
    def position(self) -> dict[int, int]:
        """Position of an image by its id."""
        return {number: position for position, number in enumerate(self.images.tolist())}


@dataclass(frozen=True, eq=False)
class CocoIds:
    """images: (I,) of the gallery's items; captions: (T,) of its captions. remarks: what had to be assumed."""

    gallery: Collection
    images: Ints
    captions: Ints
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class CocoPositives:
    """Right answers that annotators found, by COCO's ids."""

    i2t: Positives
    t2i: Positives


def match_test_split(collection: Collection, test: CocoTestSplit, who: str) -> CocoIds:
    """The test images among the collection's, with the five captions of each that count.

    By the items' ids, if they are COCO's. Features of the whole test split that do not say which image is which are
    taken to be in Karpathy's order, as everybody's are. Without caption ids, an image's first five are its five, lowest
    id first: so they are in Karpathy's file.
    """
    items = [item for item in collection if item.captions]
    ids = [image_id(item) for item in items]
    positions = [test.position.get(number, -1) if number is not None else -1 for number in ids]
    present = set(positions) - {-1}
    remarks: tuple[str, ...] = ()
    if len(present) < len(test.images):
        if len(items) != len(test.images) or any(_id_in_file_name(item) for item in items):
            missing = next((number for i, number in enumerate(test.images.tolist()) if i not in present), None)
            raise InputError(
                f"Protocol {who} is defined on the {len(test.images)} images of COCO's test split (Karpathy's); "
                f"{len(present)} of them are among the {len(items)} of {collection.name} here, and image {missing}, "
                f"for one, is not (the first here is {items[0].id if items else None!r}). Check --split, and that ids "
                "are COCO's file names or numbers."
            )
        positions, remarks = list(range(len(items))), (BY_POSITION,)
    kept, captions = [], []
    for item, position in zip(items, positions, strict=True):
        if position >= 0:
            wanted = test.captions[position]
            kept.append(_select_captions(item, wanted, who))
            own = [int(caption) for caption in kept[-1].caption_ids]
            captions.append(np.array(own, dtype=np.int64) if own else wanted)
    if not remarks and any(not item.caption_ids for item in kept):
        remarks = (BY_CAPTION_ORDER,)
    gallery = Collection(collection.name, collection.kind, kept, collection.skipped)
    return CocoIds(gallery, test.images[[p for p in positions if p >= 0]], np.concatenate(captions), remarks)


def read_own_ids(collection: Collection) -> CocoIds | None:
    """By the ids of the items and of their captions, five each; None where some have none."""
    items = [item for item in collection if item.captions]
    ids = [number for item in items if (number := image_id(item)) is not None]
    if not items or len(ids) < len(items):
        return None
    if any(not item.caption_ids or not all(name.isdecimal() for name in item.caption_ids) for item in items):
        return None
    gallery = Collection(collection.name, collection.kind, items, collection.skipped).with_captions(5, "COCO")
    captions = [int(name) for item in gallery for name in item.caption_ids]
    return CocoIds(gallery, np.array(ids, dtype=np.int64), np.array(captions, dtype=np.int64))


def image_id(item: Item) -> int | None:
    """COCO_val2014_000000391895.jpg, 000000391895 and 391895 -> 391895."""
    return _id_in_file_name(item) or (int(item.id) if item.id.isdecimal() else None)


def parse_file_name(name: str) -> int | None:
    """The id in the name of one of COCO's files: twelve digits at its end."""
    match = re.search(r"(?<!\d)\d{12}$", Path(name).stem)
    return int(match[0]) if match else None


def _id_in_file_name(item: Item) -> int | None:
    return parse_file_name(item.id) or parse_file_name(item.media.name)


def _select_captions(item: Item, ids: Ints, who: str) -> Item:
    if not item.caption_ids:
        if len(item.captions) < len(ids):
            raise InputError(
                f"Protocol {who} takes {len(ids)} captions of every image; {item.id!r} has {len(item.captions)}."
            )
        return replace(item, captions=item.captions[: len(ids)])
    wanted = {str(number) for number in ids.tolist()}
    kept = [n for n, caption in enumerate(item.caption_ids) if caption in wanted]
    if len(kept) != len(wanted):
        raise InputError(
            f"Protocol {who} takes the captions {', '.join(sorted(wanted))} of {item.id!r}; here it has "
            f"{', '.join(item.caption_ids)}. Caption ids are COCO's annotation ids, as in dataset_coco.json."
        )
    return replace(
        item,
        captions=tuple(item.captions[n] for n in kept),
        caption_ids=tuple(item.caption_ids[n] for n in kept),
    )


@dataclass(frozen=True)
class EccvCaptionFiles:
    """The data files of the package `eccv-caption`, in a folder: COCO's test captions in order, ECCV Caption's and
    CxC's positives."""

    folder: Path

    @classmethod
    def find(cls, folder: str | Path | None, who: str, why: str = "reads its annotation from") -> EccvCaptionFiles:
        """folder: where the files are, if the package is not installed. who, why: the protocol that needs them."""
        if folder is not None:
            return cls(Path(folder).expanduser())
        spec = find_spec("eccv_caption")
        if spec is None or not spec.submodule_search_locations:
            raise InputError(
                f"Protocol {who} {why} the package eccv-caption, which is not installed. Install it: "
                f"{install_command('eccv')}"
            )
        return cls(Path(spec.submodule_search_locations[0]) / "data")

    def read_test_split(self) -> CocoTestSplit:
        """The 5,000 test images in Karpathy's order, with their five captions each."""
        path = self.folder / "coco_test_ids.npy"
        try:
            captions = np.load(path, allow_pickle=False).astype(np.int64)
        except (OSError, ValueError) as error:
            raise self._unexpected(path, error) from None
        owner = self._read("original_caption_to_image")
        try:
            images = np.array([owner[caption][0] for caption in captions.tolist()]).reshape(-1, 5)
        except (KeyError, IndexError, ValueError) as error:
            raise self._unexpected(path, error) from None
        if (images != images[:, :1]).any():
            raise self._unexpected(path, "captions of one image are not side by side")
        return CocoTestSplit(images[:, 0], captions.reshape(-1, 5))

    def read_positives(self, name: Literal["eccv", "cxc"]) -> CocoPositives:
        return CocoPositives(self._read(f"{name}_image_to_caption"), self._read(f"{name}_caption_to_image"))

    def _read(self, name: str) -> Positives:
        path = self.folder / f"{name}.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return {int(query): [int(answer) for answer in answers] for query, answers in content.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise self._unexpected(path, error) from None

    def _unexpected(self, path: Path, why: object) -> InputError:
        return InputError(
            f"{path} is not the file of the package eccv-caption that was expected ({why}). Install the package again "
            "(pip install --force-reinstall eccv-caption), or name a folder of its data files (--option "
            "annotations=FOLDER)."
        )
