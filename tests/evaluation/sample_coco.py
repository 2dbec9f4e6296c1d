"""A COCO of few images: its test split, and annotation files as the package eccv-caption and CxC lay them out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from polysem.data.collection import Collection, Item, Media

IMAGES = (391895, 60623, 483108, 384213, 386164, 223648)
NOWHERE = Path()


def caption_number(image: int, number: int) -> int:
    return 10 * image + number


CAPTIONS = tuple(caption_number(image, number) for image in IMAGES for number in range(5))


def package(folder: Path, positives: Mapping[str, Mapping[int, Sequence[int]]]) -> Path:
    """positives: by the name of the file, e.g. eccv_image_to_caption."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "coco_test_ids.npy", np.array(CAPTIONS))
    originals = {caption: [caption // 10] for caption in CAPTIONS}
    for name, content in {"original_caption_to_image": originals, **positives}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def named(order: Sequence[int] = IMAGES, extra: int = 0) -> Collection:
    """As Karpathy's file has them: file names and the ids of captions. extra: captions that do not count."""
    items = []
    for image in order:
        name = f"COCO_val2014_{image:012}.jpg"
        numbers = [*(caption_number(image, number) for number in range(5)), *(9_000_000 + i for i in range(extra))]
        texts = tuple(f"caption {number}" for number in numbers)
        ids = tuple(str(number) for number in numbers)
        items.append(Item(name, Media(NOWHERE, name), texts, (), "test", (), ids))
    return Collection("coco", "image", items)


def unnamed(ids: Sequence[str]) -> Collection:
    """As precomputed features have them: no ids of captions."""
    texts = tuple(f"caption {number}" for number in range(5))
    return Collection("coco", "features", [Item(name, Media(NOWHERE, "testall_ims.npy", 0), texts) for name in ids])


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(",".join(str(cell) for cell in row) for row in [columns, *rows]) + "\n")
