"""Which of COCO's images and captions a gallery holds, by COCO's own numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from polysem.data.collection import Collection, Item
from polysem.errors import InputError
from polysem.evaluation.relevance import Ints

BY_POSITION = "images and captions matched by position, in Karpathy's test order"
BY_CAPTION_ORDER = "captions matched by their order within the image"


@dataclass(frozen=True, eq=False)
class CocoTest:
    """The images of the test split in Karpathy's order, (I,), and the captions that count, (I, 5), ascending."""

    images: Ints
    captions: Ints

    @cached_property
    def place(self) -> dict[int, int]:
        """Where an image stands, by its number."""
        return {number: place for place, number in enumerate(self.images.tolist())}


@dataclass(frozen=True, eq=False)
class CocoIds:
    """images: (I,) of the gallery's items; captions: (T,) of its captions. remarks: what had to be assumed."""

    gallery: Collection
    images: Ints
    captions: Ints
    remarks: tuple[str, ...] = ()


def match_test(collection: Collection, test: CocoTest, who: str) -> CocoIds:
    """The test images among the collection's, with the five captions of each that count.

    By the items' numbers, if they have them. Features of the whole test split that do not say which image is which
    are taken to be in Karpathy's order, as everybody's are. Without numbers for captions, an image's first five are
    its five, lowest number first: so they are in Karpathy's file.
    """
    items = [item for item in collection if item.captions]
    numbers = [image_number(item) for item in items]
    places = [test.place.get(number, -1) if number is not None else -1 for number in numbers]
    found = set(places) - {-1}
    remarks: tuple[str, ...] = ()
    if len(found) < len(test.images):
        if len(items) != len(test.images) or any(_named(item) for item in items):
            missing = next((number for place, number in enumerate(test.images.tolist()) if place not in found), None)
            raise InputError(
                f"Protocol {who} is defined on the {len(test.images)} images of COCO's test split (Karpathy's); "
                f"{len(found)} of them are among the {len(items)} of {collection.name} here, and image {missing}, for "
                f"one, is not (the first here is {items[0].id if items else None!r}). Check --split, and that ids are "
                "COCO's file names or numbers."
            )
        places, remarks = list(range(len(items))), (BY_POSITION,)
    kept, captions = [], []
    for item, place in zip(items, places, strict=True):
        if place >= 0:
            kept.append(_with_captions(item, test.captions[place], who))
            captions.append(_caption_numbers(kept[-1], test.captions[place]))
    if not remarks and any(not item.caption_ids for item in kept):
        remarks = (BY_CAPTION_ORDER,)
    gallery = Collection(collection.name, collection.kind, kept, collection.skipped)
    return CocoIds(gallery, test.images[[p for p in places if p >= 0]], np.concatenate(captions), remarks)


def own_ids(collection: Collection) -> CocoIds | None:
    """By the numbers of the items and of their captions, five each; None where some have none."""
    items = [item for item in collection if item.captions]
    numbers = [number for item in items if (number := image_number(item)) is not None]
    if not items or len(numbers) < len(items):
        return None
    if any(not item.caption_ids or not all(name.isdecimal() for name in item.caption_ids) for item in items):
        return None
    gallery = Collection(collection.name, collection.kind, items, collection.skipped).with_captions(5, "COCO")
    captions = [int(name) for item in gallery for name in item.caption_ids]
    return CocoIds(gallery, np.array(numbers, dtype=np.int64), np.array(captions, dtype=np.int64))


def image_number(item: Item) -> int | None:
    """COCO_val2014_000000391895.jpg, 000000391895 and 391895 -> 391895."""
    return _named(item) or (int(item.id) if item.id.isdecimal() else None)


def file_number(name: str) -> int | None:
    """Of a file of COCO: twelve digits at the end of its name."""
    found = re.search(r"(?<!\d)\d{12}$", Path(name).stem)
    return int(found[0]) if found else None


def _named(item: Item) -> int | None:
    return file_number(item.id) or file_number(item.media.name)


def _with_captions(item: Item, numbers: Ints, who: str) -> Item:
    if not item.caption_ids:
        if len(item.captions) < len(numbers):
            raise InputError(
                f"Protocol {who} takes {len(numbers)} captions of every image; {item.id!r} has {len(item.captions)}."
            )
        return replace(item, captions=item.captions[: len(numbers)])
    wanted = {str(number) for number in numbers.tolist()}
    kept = [place for place, caption in enumerate(item.caption_ids) if caption in wanted]
    if len(kept) != len(wanted):
        raise InputError(
            f"Protocol {who} takes the captions {', '.join(sorted(wanted))} of {item.id!r}; here it has "
            f"{', '.join(item.caption_ids)}. Caption ids are COCO's annotation ids, as in dataset_coco.json."
        )
    return replace(
        item,
        captions=tuple(item.captions[place] for place in kept),
        caption_ids=tuple(item.caption_ids[place] for place in kept),
    )


def _caption_numbers(item: Item, numbers: Ints) -> Ints:
    return np.array([int(caption) for caption in item.caption_ids], dtype=np.int64) if item.caption_ids else numbers
