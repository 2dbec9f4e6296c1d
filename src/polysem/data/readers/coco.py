"""COCO's own JSON: captions, and instances with their 80 labels and boxes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polysem.data.collection import Box, Collection, Item, Media
from polysem.data.problems import DataError, Problems
from polysem.data.readers.text import clean_named_captions, read_json, split_name


def read_coco(
    files: Sequence[Path],
    images: Path | None = None,
    repair_bytes: bool = False,
    problems: Problems | None = None,
) -> Collection:
    """files: any of captions_*.json and instances_*.json; the two of one split are joined by image id.

    images: the folder that holds the pictures or one folder per split; looked for beside the files if not given.
    """
    problems = problems or Problems()
    pictures: dict[int, tuple[str, str | None]] = {}
    captions: dict[int, list[tuple[object, object]]] = defaultdict(list)
    labels: dict[int, list[str]] = defaultdict(list)
    boxes: dict[int, list[Box]] = defaultdict(list)
    for path in files:
        content = read_json(path)
        if not isinstance(content, dict) or not {"images", "annotations"} <= content.keys():
            raise DataError(f'{path}: not a COCO file: expected {{"images": […], "annotations": […]}}.')
        split = _split_of(path)
        for entry in content["images"]:
            known = pictures.setdefault(entry["id"], (entry["file_name"], split))
            if known[1] != split:
                problems.error("two splits", entry["file_name"], f"is in {known[1]!r} and in {split!r}.")
        names = {entry["id"]: entry for entry in content.get("categories", [])}
        for annotation in content["annotations"]:
            _annotate(annotation, names, captions, labels, boxes, path.name, problems)
    folders = _folders(files, images)
    items = []
    for image, (name, split) in pictures.items():
        folder = next((f for f in folders if (f / name).is_file()), None)
        if folder is None:
            problems.skip("missing picture", name, f"is in none of {', '.join(str(f) for f in folders)}.")
            continue
        raw, numbers = [text for text, _ in captions[image]], [number for _, number in captions[image]]
        texts, ids = clean_named_captions(raw, numbers, name, problems, repair_bytes)
        names_of_things = tuple(dict.fromkeys(labels[image]))
        items.append(Item(name, Media(folder, name), texts, names_of_things, split, tuple(boxes[image]), ids))
    if not items:
        raise DataError(f"{files[0]}: none of its {len(pictures)} pictures was found. Name their folder with images=….")
    return Collection("coco", "image", items, problems.skipped)


def _annotate(
    annotation: dict[str, Any],
    names: dict[int, dict[str, Any]],
    captions: dict[int, list[tuple[object, object]]],
    labels: dict[int, list[str]],
    boxes: dict[int, list[Box]],
    where: str,
    problems: Problems,
) -> None:
    image = annotation.get("image_id")
    if not isinstance(image, int):
        problems.error("malformed entry", where, f"annotation {annotation.get('id')} has no image_id.")
        return
    if "caption" in annotation:
        captions[image].append((annotation["caption"], annotation.get("id")))
    if "category_id" in annotation:
        category = names.get(annotation["category_id"])
        if category is None:
            problems.error("unknown category", where, f"annotation {annotation.get('id')} names no known category.")
            return
        labels[image].append(category["name"])
        x, y, width, height = annotation.get("bbox", (0.0, 0.0, 0.0, 0.0))
        boxes[image].append(Box(category["name"], x, y, x + width, y + height, category.get("supercategory")))


def _split_of(path: Path) -> str | None:
    """captions_train2017.json -> train."""
    match = re.search(r"(train|val|test|minival|restval)", path.stem)
    return split_name(match[1]) if match else None


def _folders(files: Sequence[Path], images: Path | None) -> list[Path]:
    """Where pictures may be: the folder given or the usual places, and the split folders inside."""
    roots = (
        [images]
        if images
        else [f for p in files for f in (p.parent / "images", p.parent.parent / "images", p.parent.parent, p.parent)]
    )
    found = [f for root in dict.fromkeys(roots) if root.is_dir() for f in (root, *sorted(root.glob("*20[0-9][0-9]")))]
    if not found:
        raise DataError(f"{images or files[0].parent}: no folder of pictures here. Name it with images=….")
    return list(dict.fromkeys(found))
