"""What every encoder of pixels can do, be it of pictures or of videos: from a file or a picture to its input."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import torch
from PIL import Image
from torch import Tensor

from polysem.encoders.base import Encoder, Takes


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
