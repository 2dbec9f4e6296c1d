"""What the scripts of the shipped photo models share: one collection of several, and figures on its val split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polysem.evaluation import evaluate

FIGURES = ("rsum", *(f"{way}.r{cut}" for way in ("i2t", "t2i") for cut in (1, 5, 10)))
PARTS = tuple(f"{kind}.{metric}" for kind in ("nouns", "phrases") for metric in ("map", "precision10"))
SPLIT_FOR_ALL = "restval"
"""The split of what is only learned from."""


def merge(flickr8k: Path, coco: Sequence[Path], out: Path) -> Path:
    """One collection: Flickr8k keeps its train and val, of the COCO folders everything is to learn from.

    The first COCO folder's pictures are `coco/…`, those of the others `coco-2/…` and so on. Test splits are left out.
    """
    images: list[dict[str, Any]] = []
    (out / "images").mkdir(parents=True, exist_ok=True)
    names = ["flickr", *(f"coco-{number}" if number > 1 else "coco" for number in range(1, len(coco) + 1))]
    for name, folder in zip(names, (flickr8k, *coco), strict=True):
        link = out / "images" / name
        if not link.exists():
            link.symlink_to((folder / "images").resolve())
        (file,) = folder.glob("dataset*.json")
        for item in json.loads(file.read_text(encoding="utf-8"))["images"]:
            if item["split"] != "test":
                split = item["split"] if name == "flickr" else SPLIT_FOR_ALL
                described = {"filename": f"{name}/{item['filename']}", "split": split}
                images.append({**described, "sentences": item["sentences"][:5]})
    (out / "dataset_photos.json").write_text(json.dumps({"dataset": "photos", "images": images}), encoding="utf-8")
    return out


def measure(model: Any, data: Any, features: Path, text_features: Path) -> dict[str, Any]:
    """Recalls on val and queries for parts, with the protocols they were measured under."""
    pairs = evaluate(model, data, protocol="pairs", split="val", features=features, text_features=text_features)
    parts = evaluate(model, data, protocol="parts", split="val", features=features)
    recalls, found = pairs.as_dict()["metrics"], parts.as_dict()["metrics"]
    return {
        **{name: recalls[name] for name in FIGURES},
        "protocol": str(pairs.stamp),
        **{name: found[name] for name in PARTS},
        "parts_protocol": str(parts.stamp),
    }
