"""Karpathy's JSON: `dataset_*.json` beside an image folder. Flickr8k, Flickr30k, COCO, and our own emoji scenes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from polysem.data.collection import Box, Collection, DataError, Item, Media, Problems
from polysem.data.readers import base


def _recognise(data: base.DataLocation) -> dict[str, Any] | None:
    if not data.is_folder:
        content = data.json
        is_karpathy = isinstance(content, dict) and isinstance(content.get("images"), list)
        return {"path": data.path} if is_karpathy and "annotations" not in content else None
    files = sorted(data.path.glob("dataset_*.json"))
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise DataError(f"{data.path}: holds several data sets ({names}). Name the one you mean.")
    return {"path": files[0]} if files else None


@base.register_reader(_recognise, priority=10, layout="Karpathy's dataset_*.json")
def read_karpathy(
    path: Path,
    images: Path | None = None,
    restval_in_train: bool = False,
    repair_bytes: bool = False,
    problems: Problems | None = None,
) -> Collection:
    """Read Karpathy's JSON.

    Args:
        path: the JSON.
        images: the folder of pictures, `images/` beside the JSON or the JSON's own folder if not given.
        restval_in_train: COCO's "restval" images join the training split, as most papers have it.
    """
    problems = problems or Problems()
    content = base.read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise DataError(f'{path}: not a Karpathy file: expected {{"images": [{{"filename", "sentences", …}}]}}.')
    folder = images or next(f for f in (path.parent / "images", path.parent) if f.is_dir())
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of pictures.")
    items: dict[str, Item] = {}
    for number, entry in enumerate(content["images"]):
        if not isinstance(entry, dict) or not isinstance(entry.get("filename"), str):
            problems.error("malformed entry", f"{path.name} image {number}", "has no filename.")
            continue
        item = _read_item(entry, folder, repair_bytes, problems)
        if item is None:
            continue
        if item.split == "restval" and restval_in_train:
            item = replace(item, split="train")
        before = items.setdefault(item.id, item)
        if before.split != item.split:
            message = f"is in {before.split!r} and in {item.split!r}: the test would leak."
            problems.error("two splits", item.id, message)
        elif before is not item:
            problems.error("duplicate id", item.id, "occurs more than once.")
    if not items:
        count = len(content["images"])
        raise DataError(f"{path}: none of its {count} pictures is in {folder}. Name their folder with images=….")
    name, credit = str(content.get("dataset", path.stem)), str(content.get("credit", ""))
    return Collection(name, "image", list(items.values()), problems.skipped, credit)


def _read_item(entry: dict[str, Any], folder: Path, repair_bytes: bool, problems: Problems) -> Item | None:
    name = entry["filename"]
    sentences = entry.get("sentences", [])
    raw = [s.get("raw", " ".join(s.get("tokens", []))) if isinstance(s, dict) else s for s in sentences]
    ids = [s.get("sentid") if isinstance(s, dict) else None for s in sentences]
    captions, caption_ids = base.clean_named_captions(raw, ids, name, problems, repair_bytes)
    file = next((p for p in (name, f"{entry.get('filepath', '')}/{name}") if (folder / p).is_file()), None)
    if file is None:
        problems.skip("missing picture", name, f"is not in {folder}.")
        return None
    boxes = []
    for thing in entry.get("objects", ()):
        if "box" in thing:
            x0, y0, x1, y1 = map(float, thing["box"])
            boxes.append(Box(str(thing["name"]), x0, y0, x1, y1, thing.get("group"), thing.get("color")))
    labels, split = base.parse_labels(entry.get("labels"), name, problems), base.normalise_split(entry.get("split"))
    return Item(name, Media(folder, file), captions, labels, split, tuple(boxes), caption_ids)
