"""Images to normalised pixels, as a backbone was trained to see them, and boxes on them as boxes on the image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from polysem._deprecated import renamed_attribute
from polysem.errors import InputError, kind

Resize = Literal["stretch", "crop"]
Interpolation = Literal["bilinear", "bicubic", "lanczos"]
Channels = Annotated[list[float], Field(min_length=3, max_length=3)]
"""One number for each of red, green and blue, on the scale 0 to 1."""

IMAGENET_MEAN = [0.485, 0.456, 0.406]
IMAGENET_STD = [0.229, 0.224, 0.225]


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes the square an encoder sees.

    resize: "stretch" shows the whole picture without keeping its aspect ratio (VSE∞), "crop" its central square.
    mean, std: x -> (x - mean) / std for each channel of x in 0..1.
    """

    size: int
    resize: Resize
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation

    def pixels(self, image: Image.Image) -> Tensor:
        """(3, size, size), the same for the same picture."""
        rgb = to_rgb(image)
        return self._normalise(rgb, _window(self.resize, *rgb.size))

    def augment(self, image: Image.Image, generator: torch.Generator) -> Tensor:
        """(3, size, size) for training, as in VSE∞: a random window of 0.6 to 1 of both sides, mirrored or not."""
        rgb = to_rgb(image)
        ratio, across, down, mirror = torch.rand(4, generator=generator).tolist()
        x0, y0, x1, y1 = _window(self.resize, *rgb.size)
        width, height = (x1 - x0) * (0.6 + 0.4 * ratio), (y1 - y0) * (0.6 + 0.4 * ratio)
        x0, y0 = x0 + across * (x1 - x0 - width), y0 + down * (y1 - y0 - height)
        pixels = self._normalise(rgb, (x0, y0, x0 + width, y0 + height))
        return pixels.flip(-1) if mirror < 0.5 else pixels

    augmented = renamed_attribute("augmented", "augment")

    def on_picture(self, boxes: Tensor, width: int, height: int) -> Tensor:
        """(..., 4) boxes in 0..1 of the square -> the same places in 0..1 of a picture of that width and height."""
        x0, y0, x1, y1 = _window(self.resize, width, height)
        scale = boxes.new_tensor([(x1 - x0) / width, (y1 - y0) / height] * 2)
        return boxes * scale + boxes.new_tensor([x0 / width, y0 / height] * 2)

    def _normalise(self, rgb: Image.Image, window: tuple[float, float, float, float]) -> Tensor:
        how = Image.Resampling[self.interpolation.upper()]
        # reducing_gap shrinks a huge photo by whole numbers first: several times faster, and hardly to be seen at 3.
        square = rgb.resize((self.size, self.size), how, box=window, reducing_gap=3.0)
        x = torch.from_numpy(np.array(square)).permute(2, 0, 1).float().div_(255.0)
        return x.sub_(torch.tensor(self.mean)[:, None, None]).div_(torch.tensor(self.std)[:, None, None])


def _window(resize: Resize, width: int, height: int) -> tuple[float, float, float, float]:
    """The part of a picture that is shown: left, top, right, bottom."""
    if resize == "stretch":
        return 0.0, 0.0, float(width), float(height)
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow picture as RGB; what is transparent becomes white."""
    if not isinstance(image, Image.Image):
        raise InputError(f"Expected a PIL image, got {kind(image)}. Open a file with polysem.data.load_image().")
    if 0 in image.size:
        raise InputError(f"The picture has no pixels: {image.size[0]} x {image.size[1]}.")
    if image.mode == "RGB":
        return image
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return image.convert("RGB")


def grid_boxes(rows: int, columns: int) -> Tensor:
    """(rows * columns, 4): [x0, y0, x1, y1] in 0..1 of each cell, row by row."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    corners = torch.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], dim=-1)
    return corners.flatten(0, 1)


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


def read_preprocessing(
    folder: Path | None,
    config: Mapping[str, Any],
    size: int | None,
    resize: Resize,
    mean: list[float] | None,
    std: list[float] | None,
    interpolation: Interpolation | None,
) -> Preprocessing:
    """What the knobs say; where they are silent, the folder's preprocessor_config.json; else its family's habit."""
    found, family = None, config.get("model_type", "")
    if folder is not None:
        with suppress(OSError, ValueError):
            found = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    found = found if isinstance(found, dict) else {}
    usual_mean, usual_std = _NORMALISATION.get(family, (IMAGENET_MEAN, IMAGENET_STD))
    cropped = _side(found.get("crop_size")) if found.get("do_center_crop") else None
    return Preprocessing(
        size=size or cropped or _side(found.get("size")) or side_of(config) or _SIDE.get(family, 224),
        resize=resize,
        mean=tuple(mean or _normalisation(found, "image_mean", 0.0) or usual_mean),
        std=tuple(std or _normalisation(found, "image_std", 1.0) or usual_std),
        interpolation=interpolation or _PILLOW_FILTERS.get(found.get("resample", 2), "bilinear"),
    )


def side_of(config: Mapping[str, Any]) -> int | None:
    """The side of the pictures that a backbone's positions were learned for, if it has such."""
    return _side(config.get("image_size")) or _side((config.get("vision_config") or {}).get("image_size"))


def _normalisation(found: Mapping[str, Any], key: str, without: float) -> list[float] | None:
    if found.get("do_normalize") is False:
        return [without] * 3
    value = found.get(key)
    return [float(channel) for channel in value] if isinstance(value, list) and len(value) == 3 else None


def _side(size: Any) -> int | None:
    """The side of a square, however it is stated: 224, [224, 224], {"height": 224, …}, {"shortest_edge": 224}."""
    if isinstance(size, Mapping):
        size = size.get("height") or size.get("shortest_edge")
    elif isinstance(size, (list, tuple)):
        size = next(iter(size), None)
    return int(size) if size else None
