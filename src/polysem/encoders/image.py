"""Encoders of pixels: from an image or video to its local features, and where on the image each of them looks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from torch import Tensor, nn

from polysem.data.images import load_image
from polysem.encoders.backbones import Backbone, find_stages
from polysem.encoders.base import Encoder, Kind, Takes, Trainable
from polysem.encoders.preprocessing import Preprocessing
from polysem.encoders.region import xavier_linear
from polysem.errors import InputError
from polysem.features import LocalFeatures
from polysem.masked_ops import is_tracing


class PixelEncoder(Encoder):
    """Reads a file by `read` and a picture by `preprocess`; what they give, stacked, is what it is called with."""

    takes: ClassVar[Takes] = "pixels"
    pictures_per_item: int = 1
    """How many pictures an input holds: those who bound their memory by a number of items divide it by this."""

    @property
    @abstractmethod
    def tokens_per_item(self) -> int:
        """How many local features it makes of an input."""

    @abstractmethod
    def read(self, path: Path, generator: torch.Generator | None = None) -> Tensor:
        """The input made of a file. generator: draws an augmentation, for training."""

    @abstractmethod
    def preprocess(self, image: Image.Image) -> Tensor:
        """The input made of a picture."""


class ImageEncoder(PixelEncoder):
    """Pictures to pixels by `preprocess` (or `augment`, to train), pixels to `LocalFeatures` by calling it."""

    kind: ClassVar[Kind] = "image"

    def __init__(
        self,
        backbone: Backbone,
        width: int,
        dim: int | None,
        preprocessing: Preprocessing,
        trainable: Trainable,
        lr_scale: float,
    ) -> None:
        """width: of the backbone's tokens; `dim` projects them, None leaves them as they are."""
        super().__init__(trainable, lr_scale)
        self.backbone = backbone.module
        self.backbone_config = backbone.config
        self.projection = xavier_linear(width, dim) if dim is not None else None
        self.dim = dim or width
        self.preprocessing = preprocessing
        self.set_trainable(trainable)

    @property
    def image_size(self) -> int:
        """Side of the square of pixels this encoder takes."""
        return self.preprocessing.size

    @property
    def tokens_per_item(self) -> int:
        return len(self.places())

    def read(self, path: Path, generator: torch.Generator | None = None) -> Tensor:
        """The picture of a file by `preprocess`, or with a generator by `augment`."""
        image = load_image(path)
        return self.preprocess(image) if generator is None else self.augment(image, generator)

    def preprocess(self, image: Image.Image) -> Tensor:
        """(3, image_size, image_size): the picture as this encoder was trained to see it."""
        return self.preprocessing.pixels(image)

    def augment(self, image: Image.Image, generator: torch.Generator) -> Tensor:
        """Like `preprocess`, but a random part of the picture, at times mirrored: for training."""
        return self.preprocessing.augmented(image, generator)

    def forward(self, pixels: Tensor) -> LocalFeatures:
        self.check(pixels)
        return self.local(self.tokens(pixels))

    @abstractmethod
    def tokens(self, pixels: Tensor) -> Tensor:
        """Checked pixels (B, 3, S, S) -> the backbone's tokens (B, N, width)."""

    @abstractmethod
    def cells(self) -> Tensor:
        """(N, 4): [x0, y0, x1, y1] in 0..1 of the pixels, of each token in order."""

    def places(self, width: int | None = None, height: int | None = None) -> Tensor:
        """(N, 4): the box [x0, y0, x1, y1] of each token, in token order, in 0..1 of the picture.

        Give the picture's width and height if resize is "crop"; without them it is taken to be square.
        """
        return self.preprocessing.on_picture(self.cells(), width or 1, height or width or 1)

    def local(self, tokens: Tensor) -> LocalFeatures:
        """(B, N, width) -> features of width `dim`, all of them real."""
        values = tokens if self.projection is None else self.projection(tokens)
        return LocalFeatures(values, torch.ones(values.shape[:2], dtype=torch.bool, device=values.device))

    def check(self, pixels: Tensor) -> None:
        """Raise unless the pixels are what `preprocess` makes, stacked."""
        if is_tracing():
            return
        side = self.image_size
        if not isinstance(pixels, Tensor) or pixels.ndim != 4 or pixels.shape[1:] != (3, side, side) or not len(pixels):
            given = tuple(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
            raise InputError(
                f"This encoder takes pixels of shape (items, 3, {side}, {side}), got {given}. "
                "Make them with torch.stack([encoder.preprocess(image) for image in images])."
            )

    @property
    def body(self) -> nn.Module:
        return self.backbone

    def stages(self) -> list[nn.Module]:
        return find_stages(self.backbone)

    def train(self, mode: bool = True) -> Self:
        """Training mode, in which the backbone's BatchNorm keeps the statistics it was pretrained with."""
        super().train(mode)
        for module in self.backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def resolved_knobs(self) -> Mapping[str, Any]:
        seen = self.preprocessing
        return {
            "pretrained": False,
            "backbone_config": self.backbone_config,
            "image_size": seen.size,
            "mean": list(seen.mean),
            "std": list(seen.std),
            "interpolation": seen.interpolation,
        }
