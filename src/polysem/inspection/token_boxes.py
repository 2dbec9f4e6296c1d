"""Where each local feature lies in the image, as it was before it was resized or cropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from polysem.data.store import FeatureManifest
from polysem.encoders import Detector, Encoder, ImageEncoder
from polysem.encoders.base import eval_mode, registry
from polysem.encoders.preprocessing import Preprocessing, grid_boxes
from polysem.errors import InputError, UnknownNameError, kind

TokenKind = Literal["cells", "boxes", "frames", "unknown"]
_SEEN_BY = ("image_size", "resize", "interpolation")
"""Knobs of an encoder that say which part of the image its grid covers."""


@dataclass(frozen=True, eq=False)
class TokenBoxes:
    """The boxes of an item's N tokens, in their order.

    boxes: (N, 4) [x0, y0, x1, y1] in pixels of the image; NaN for a token without a box, such as a class token.
    kind: cells    of a grid, or patches: tokens that tile what the encoder saw
          boxes    regions, anywhere
          frames   of a video, one after the other
          unknown  features whose boxes were not stored
    size: (width, height) of the image, (0, 0) if it is not known.
    grid: (rows, columns) of `cells`.
    times: of `frames` the second each was taken at, where that is known.
    """

    boxes: Tensor
    kind: TokenKind
    size: tuple[int, int] = (0, 0)
    grid: tuple[int, int] = (0, 0)
    times: tuple[float, ...] = ()

    @classmethod
    def unlocated(cls, tokens: int, kind: TokenKind = "unknown", size: tuple[int, int] = (0, 0)) -> TokenBoxes:
        """Tokens whose boxes are not known."""
        return cls(torch.full((tokens, 4), float("nan")), kind, size)

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def located(self) -> Tensor:
        """(N,) bool: which tokens have a box."""
        return ~self.boxes.isnan().any(1)

    @property
    def centres(self) -> Tensor:
        """(N, 2): x and y in pixels; NaN without a box."""
        return (self.boxes[:, :2] + self.boxes[:, 2:]) / 2

    @property
    def window(self) -> tuple[float, float, float, float]:
        """The part of the image that `cells` tile: left, top, right, bottom."""
        boxes = self.boxes[self.located]
        low, high = boxes[:, :2].amin(0), boxes[:, 2:].amax(0)
        return float(low[0]), float(low[1]), float(high[0]), float(high[1])

    def as_map(self, weights: Tensor) -> Tensor:
        """(..., N) -> (..., rows, columns): values of `cells` laid out as on the image."""
        if self.kind != "cells":
            raise InputError(f"Only cells of a grid make a map; these are {self.kind}. Draw the boxes instead.")
        grid: Tensor = weights[..., self.located].unflatten(-1, self.grid)
        return grid


def locate_tokens(encoder: Encoder, image: Image.Image | tuple[int, int], tokens: int | None = None) -> TokenBoxes:
    """The boxes of the tokens that this encoder makes of an image.

    Args:
        image: itself, upright; or, for encoders with a fixed grid, its (width, height) is enough.
        tokens: how many there are, for encoders of precomputed features, from which no box can be known.
    """
    size = image.size if isinstance(image, Image.Image) else (int(image[0]), int(image[1]))
    if isinstance(encoder, Detector):
        if not isinstance(image, Image.Image):
            raise InputError(f"A detector's regions lie elsewhere in each image: give the image, not its size {size}.")
        pixels = encoder.preprocess(image)[None].to(next(encoder.parameters()).device)
        with torch.no_grad(), eval_mode(encoder):
            detected = encoder.detect(pixels).boxes[0].float().cpu()
        boxes = encoder.preprocessing.on_picture(detected, *size)
        return TokenBoxes(boxes * boxes.new_tensor([*size, *size]), "boxes", size)
    if isinstance(encoder, ImageEncoder):
        unlocated = int(bool(getattr(encoder, "has_cls", False)))
        return _tile(encoder.places(*size), unlocated, size, encoder.grid(*size))
    if tokens is None:
        raise InputError(f"{type(encoder).__name__} takes precomputed features: say how many `tokens` there are.")
    return TokenBoxes.unlocated(tokens, "frames" if encoder.kind == "video" else "unknown", size)


def locate_regions(boxes: Any, size: tuple[int, int]) -> TokenBoxes:
    """The boxes of precomputed regions.

    Args:
        boxes: (N, 4) [x0, y0, x1, y1] in pixels of an image of this (width, height).
    """
    values = torch.as_tensor(boxes, dtype=torch.float32)
    if values.ndim != 2 or values.shape[1] != 4:
        raise InputError(f"Boxes are (regions, 4): x0, y0, x1, y1 in pixels; got {kind(boxes)}.")
    known = values[~values.isnan().any(1)]
    wrong = known[(known[:, :2] > known[:, 2:]).any(1)]
    if len(wrong):
        raise InputError(f"Boxes are x0, y0, x1, y1 in pixels, with x0 < x1 and y0 < y1; got {wrong[0].tolist()}.")
    return TokenBoxes(values, "boxes", size)


def locate_stored_tokens(manifest: FeatureManifest, tokens: int, size: tuple[int, int]) -> TokenBoxes:
    """The boxes of a feature store's tokens in an image of this (width, height), as far as its manifest tells.

    It does for grids and patches. A detector's boxes are not stored.
    """
    stored = manifest.encoder
    try:
        encoder = registry.find(str(stored.get("name")))
    except UnknownNameError:  # made by other means
        return TokenBoxes.unlocated(tokens, "unknown", size)
    if not encoder.tiles_image or not all(knob in stored for knob in _SEEN_BY):
        return TokenBoxes.unlocated(tokens, "frames" if encoder.kind == "video" else "unknown", size)
    side = int(tokens**0.5)
    unlocated = tokens - side**2
    if unlocated not in (0, 1):
        raise InputError(f"{tokens} tokens of {stored['name']} are not a square grid, with or without a class token.")
    image_size, resize, interpolation = (stored[knob] for knob in _SEEN_BY)
    seen = Preprocessing(int(image_size), resize, (), (), interpolation)
    boxes = seen.on_picture(grid_boxes(side, side), *size)
    return _tile(torch.cat([boxes[:unlocated], boxes]), unlocated, size)


def _tile(fractions: Tensor, unlocated: int, size: tuple[int, int], grid: tuple[int, int] | None = None) -> TokenBoxes:
    """Cells in 0..1 of the image, the first `unlocated` of which are tokens without a box. grid: not a square one."""
    boxes = fractions * fractions.new_tensor([*size, *size])
    boxes[:unlocated] = float("nan")
    side = int((len(boxes) - unlocated) ** 0.5)
    return TokenBoxes(boxes, "cells", size, grid or (side, side))
