"""Small pictures and data sets in every layout, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, colour: tuple[int, int, int] | int = (200, 30, 30), size=(12, 8), mode="RGB", **save) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **save)
    return path


def noise(path: Path, seed: int, size=(12, 8)) -> Path:
    """A picture unlike any other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def karpathy(folder: Path, entries: list[dict], name="toy", pictures=True) -> Path:
    """`entries` need a filename; captions and split are filled in if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    images = []
    for i, entry in enumerate(entries):
        entry = {"split": "train", "captions": [f"picture number {i}", "another caption"], **entry}
        sentences = [{"raw": caption} for caption in entry.pop("captions")]
        images.append({**entry, "sentences": sentences})
        if pictures:
            noise(folder / "images" / entry["filename"], seed=i)
    path = folder / f"dataset_{name}.json"
    path.write_text(json.dumps({"dataset": name, "images": images}))
    return path


def precomp(folder: Path, split: str, images: int, per_image=5, repeat=False, ids=True, dim=6) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    array = np.random.default_rng(len(split) + images).standard_normal((images, 4, dim)).astype(np.float32)
    rows = array.repeat(5, axis=0) if repeat else array
    np.save(folder / f"{split}_ims.npy", rows)
    captions = [f"{split} image {i} caption {c}" for i in range(images) for c in range(per_image)]
    (folder / f"{split}_caps.txt").write_text("\n".join(captions) + "\n")
    if ids:
        names = [f"{split}{i}" for i in range(images) for _ in range(len(rows) // images)]
        (folder / f"{split}_ids.txt").write_text("\n".join(names) + "\n")
    return array
