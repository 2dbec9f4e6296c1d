"""COCO's own JSON: captions, and instances with their 80 labels and boxes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polysem.data.collection import Box, Collection, DataError, Item, Media, Problems
from polysem.data.readers import base

_IMAGE, _CATEGORY = {"id": int, "file_name": str}, {"id": int, "name": str}


def _recognise(data: base.DataLocation) -> dict[str, Any] | None:
    if isinstance(data.json, dict) and "annotations" in data.json:
        return {"files": [data.path]}
    for folder in (data.path, data.path / "annotations"):
        files = sorted([*folder.glob("captions_*.json"), *folder.glob("instances_*.json")])
        if files:
            return {"files": files}
    return None


@base.register_reader(_recognise, priority=30, layout="COCO's captions_*.json and instances_*.json")
def read_coco(
    files: Sequence[Path], images: Path | None = None, repair_bytes: bool = False, problems: Problems | None = None
) -> Collection:
    """Read COCO's JSON files.

    Args:
        files: any of captions_*.json and instances_*.json; the two of one split are joined by image id.
        images: the folder that holds the pictures or one folder per split; looked for beside the files if not given.
    """
    problems = problems or Problems()
    pictures: dict[int, tuple[str, str | None]] = {}
    captions: dict[int, list[tuple[object, object]]] = defaultdict(list)
    labels: dict[int, list[str]] = defaultdict(list)
    boxes: dict[int, list[Box]] = defaultdict(list)
    for path in files:
        content, expected = base.read_json(path), 'expected {"images": […], "annotations": […]}'
        if not isinstance(content, dict) or not {"images", "annotations"} <= content.keys():
            raise DataError(f"{path}: not a COCO file: {expected}.")
        for part in ("images", "annotations", "categories"):
            if not isinstance(content.get(part, []), list):
                raise DataError(f"{path}: not a COCO file: its {part!r} is {content[part]!r:.40}; {expected}.")
        match = re.search(r"(train|val|test|minival|restval)", path.stem)  # captions_train2017.json
        split = base.normalise_split(match[1]) if match else None
        for entry in base.complete_entries(content["images"], "image", _IMAGE, path.name, problems):
            known = pictures.setdefault(entry["id"], (entry["file_name"], split))
            if known[1] != split:
                problems.error("two splits", entry["file_name"], f"is in {known[1]!r} and in {split!r}.")
        entries = base.complete_entries(content.get("categories", []), "category", _CATEGORY, path.name, problems)
        categories = {entry["id"]: entry for entry in entries}
        entries = base.complete_entries(content["annotations"], "annotation", {"image_id": int}, path.name, problems)
        for annotation in entries:
            image = annotation["image_id"]
            if "caption" in annotation:
                captions[image].append((annotation["caption"], annotation.get("id")))
            if "category_id" not in annotation:
                continue
            number, sides = annotation["category_id"], annotation.get("bbox", [0.0, 0.0, 0.0, 0.0])
            category = categories.get(number) if isinstance(number, int) else None
            if category is None:
                message = f"annotation {annotation.get('id')} names no known category: its category_id is {number!r}."
                problems.error("unknown category", path.name, message)
                continue
            labels[image].append(category["name"])
            numbers = isinstance(sides, list) and all(isinstance(side, (int, float)) for side in sides)
            if not numbers or len(sides) != 4 or not all(map(math.isfinite, sides)):
                message = f"annotation {annotation.get('id')} has the bbox {sides!r}; expected [x, y, width, height]."
                problems.error("malformed entry", path.name, message)
                continue
            x, y, width, height = sides
            boxes[image].append(Box(category["name"], x, y, x + width, y + height, category.get("supercategory")))
    # Pictures are in the folder given or in the usual places, and in the split folders inside.
    usual = [f for p in files for f in (p.parent / "images", p.parent.parent / "images", p.parent.parent, p.parent)]
    roots = [root for root in ([images] if images else usual) if root.is_dir()]
    folders = list(dict.fromkeys(f for root in roots for f in (root, *sorted(root.glob("*20[0-9][0-9]")))))
    if not folders:
        raise DataError(f"{images or files[0].parent}: no folder of pictures here. Name it with images=….")
    items = []
    for image, (name, split) in pictures.items():
        folder = next((f for f in folders if (f / name).is_file()), None)
        if folder is None:
            problems.skip("missing picture", name, f"is in none of {', '.join(str(f) for f in folders)}.")
            continue
        raw, given = [text for text, _ in captions[image]], [number for _, number in captions[image]]
        texts, ids = base.clean_named_captions(raw, given, name, problems, repair_bytes)
        shown = tuple(dict.fromkeys(labels[image]))
        items.append(Item(name, Media(folder, name), texts, shown, split, tuple(boxes[image]), ids))
    if not items:
        raise DataError(f"{files[0]}: none of its {len(pictures)} pictures was found. Name their folder with images=….")
    return Collection("coco", "image", items, problems.skipped)
