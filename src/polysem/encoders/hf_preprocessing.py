"""The pixels a vision backbone was trained on, read from its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polysem.encoders.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocessing, Resize

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
# What each family was trained on where its folder does not say; all others on ImageNet's mean and deviation.
_HALF, _RAW, _CLIP = ([0.5] * 3, [0.5] * 3), ([0.0] * 3, [1.0] * 3), (CLIP_MEAN, CLIP_STD)
_NORMALISATION = {
    **dict.fromkeys(("vit", "siglip_vision_model", "bit"), _HALF),
    **dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine"), _RAW),
    **dict.fromkeys(("clip_vision_model", "owlvit", "owlv2"), _CLIP),
}
_SIDE = {"detr": 800, "conditional_detr": 800, "deformable_detr": 800, "rt_detr": 640, "rt_detr_v2": 640, "d_fine": 640}
_PILLOW_FILTERS: dict[int, Interpolation] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}


def preprocessing(
    folder: Path | None,
    config: Mapping[str, Any],
    size: int | None,
    resize: Resize,
    mean: list[float] | None,
    std: list[float] | None,
    interpolation: Interpolation | None,
) -> Preprocessing:
    """What the knobs say; where they are silent, the folder's preprocessor_config.json; else its family's habit."""
    found, family = _read(folder), config.get("model_type", "")
    usual_mean, usual_std = _NORMALISATION.get(family, (IMAGENET_MEAN, IMAGENET_STD))
    return Preprocessing(
        size=size or _side(found.get("size")) or side_of(config) or _SIDE.get(family, 224),
        resize=resize,
        mean=tuple(mean or _normalisation(found, "image_mean", 0.0) or usual_mean),
        std=tuple(std or _normalisation(found, "image_std", 1.0) or usual_std),
        interpolation=interpolation or _PILLOW_FILTERS.get(found.get("resample", 2), "bilinear"),
    )


def side_of(config: Mapping[str, Any]) -> int | None:
    """The side of the pictures that a backbone's positions were learned for, if it has such."""
    return _side(config.get("image_size")) or _side((config.get("vision_config") or {}).get("image_size"))


def _read(folder: Path | None) -> dict[str, Any]:
    path = folder / "preprocessor_config.json" if folder is not None else None
    if path is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _normalisation(found: Mapping[str, Any], key: str, without: float) -> list[float] | None:
    if found.get("do_normalize") is False:
        return [without] * 3
    value = found.get(key)
    return [float(channel) for channel in value] if isinstance(value, list) and len(value) == 3 else None


def _side(size: Any) -> int | None:
    """The side of a square, however it is stated: 224, [224, 224], {"height": 224, …}, {"shortest_edge": 224}."""
    if isinstance(size, Mapping):
        size = size.get("height") or size.get("shortest_edge")
    if isinstance(size, (list, tuple)):
        size = size[0] if size else None
    return int(size) if size else None
