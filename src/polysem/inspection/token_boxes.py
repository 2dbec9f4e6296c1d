"""Where each local feature lies in the picture, as it was before it was resized or cropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from polysem.data.store import FeatureManifest
from polysem.encoders import Detector, Encoder, ImageEncoder
from polysem.encoders.preprocessing import Preprocessing, grid_boxes
from polysem.errors import InputError, kind

Kind = Literal["cells", "boxes", "frames", "unknown"]
NOWHERE = float("nan")
_VIDEO = frozenset({"frames", "video_frames"})
"""Encoders whose tokens are frames."""


@dataclass(frozen=True, eq=False)
class Places:
    """The places of an item's N tokens, in their order.

    boxes: (N, 4) [x0, y0, x1, y1] in pixels of the picture; NaN for a token that has no place, as a class token.
    kind: cells    of a grid, or patches: tokens that tile what the encoder saw
          boxes    regions, anywhere
          frames   of a video, one after the other
          unknown  features of which nobody wrote down where they lie
    size: (width, height) of the picture, (0, 0) if it is not known.
    grid: (rows, columns) of `cells`.
    times: of `frames` the second each was taken at, where that is known.
    """

    boxes: Tensor
    kind: Kind
    size: tuple[int, int] = (0, 0)
    grid: tuple[int, int] = (0, 0)
    times: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def located(self) -> Tensor:
        """(N,) bool: which tokens have a place."""
        return ~self.boxes.isnan().any(1)

    @property
    def centres(self) -> Tensor:
        """(N, 2): x and y in pixels; NaN without a place."""
        return (self.boxes[:, :2] + self.boxes[:, 2:]) / 2

    @property
    def window(self) -> tuple[float, float, float, float]:
        """The part of the picture that `cells` tile: left, top, right, bottom."""
        found = self.boxes[self.located]
        low, high = found[:, :2].amin(0), found[:, 2:].amax(0)
        return float(low[0]), float(low[1]), float(high[0]), float(high[1])

    def as_map(self, weights: Tensor) -> Tensor:
        """(..., N) -> (..., rows, columns): values of `cells` laid out as on the picture."""
        if self.kind != "cells":
            raise InputError(f"Only cells of a grid make a map; these are {self.kind}. Draw the boxes instead.")
        laid_out: Tensor = weights[..., self.located].unflatten(-1, self.grid)
        return laid_out


def places(encoder: Encoder, picture: Image.Image | tuple[int, int], tokens: int | None = None) -> Places:
    """Where the tokens lie that this encoder makes of a picture.

    picture: itself, upright; or, for encoders with a fixed grid, its (width, height) is enough.
    tokens: how many there are, for encoders of precomputed features; they have no place that could be known from them.
    """
    size = picture.size if isinstance(picture, Image.Image) else (int(picture[0]), int(picture[1]))
    if isinstance(encoder, Detector):
        if not isinstance(picture, Image.Image):
            raise InputError("A detector's regions lie elsewhere in each picture: give the picture, not its size.")
        return _detected(encoder, picture)
    if isinstance(encoder, ImageEncoder):
        return _tiled(encoder.places(*size), int(bool(getattr(encoder, "has_cls", False))), size)
    if tokens is None:
        raise InputError(f"{type(encoder).__name__} takes precomputed features: say how many `tokens` there are.")
    return nowhere(tokens, "frames" if encoder.kind == "video" else "unknown", size)


def nowhere(tokens: int, kind: Kind = "unknown", size: tuple[int, int] = (0, 0)) -> Places:
    """Tokens of which no place is known."""
    return Places(torch.full((tokens, 4), NOWHERE), kind, size)


def regions(boxes: Any, size: tuple[int, int]) -> Places:
    """Places of precomputed regions. boxes: (N, 4) [x0, y0, x1, y1] in pixels of a picture of this (width, height)."""
    found = torch.as_tensor(boxes, dtype=torch.float32)
    if found.ndim != 2 or found.shape[1] != 4:
        raise InputError(f"Boxes are (regions, 4): x0, y0, x1, y1 in pixels; got {kind(boxes)}.")
    known = found[~found.isnan().any(1)]
    if bool((known[:, :2] > known[:, 2:]).any()):
        raise InputError("Boxes are x0, y0, x1, y1 in pixels, with x0 < x1 and y0 < y1; some end before they begin.")
    return Places(found, "boxes", size)


def stored_places(manifest: FeatureManifest, tokens: int, size: tuple[int, int]) -> Places:
    """Where the tokens of a feature store lie in a picture of this (width, height), as far as its manifest tells.

    It does for grids and patches. A detector's boxes are not stored.
    """
    made_by = manifest.encoder
    if made_by.get("name") not in ("grid", "grids", "patch"):
        return nowhere(tokens, "frames" if made_by.get("name") in _VIDEO else "unknown", size)
    side = int(tokens**0.5)
    without_place = tokens - side**2
    if without_place not in (0, 1):
        raise InputError(
            f"{tokens} tokens of a {made_by['name']} encoder are no square grid, with or without a class token."
        )
    seen = Preprocessing(int(made_by["image_size"]), made_by["resize"], (), (), made_by["interpolation"])
    boxes = seen.on_picture(grid_boxes(side, side), *size)
    return _tiled(torch.cat([boxes[:without_place], boxes]), without_place, size)


def _tiled(fractions: Tensor, without_place: int, size: tuple[int, int]) -> Places:
    """Cells in 0..1 of the picture, after so many tokens that have no place."""
    boxes = fractions * fractions.new_tensor([*size, *size])
    boxes[:without_place] = NOWHERE
    side = int((len(boxes) - without_place) ** 0.5)
    return Places(boxes, "cells", size, (side, side))


@torch.no_grad()
def _detected(encoder: Detector, picture: Image.Image) -> Places:
    training = encoder.training
    encoder.eval()
    try:
        device = next(encoder.parameters()).device
        found = encoder.detect(encoder.preprocess(picture)[None].to(device)).boxes[0].float().cpu()
    finally:
        encoder.train(training)
    width, height = picture.size
    boxes = encoder.preprocessing.on_picture(found, width, height)
    return Places(boxes * boxes.new_tensor([width, height] * 2), "boxes", (width, height))
