"""Encoders of pixels: images to local features and where on the image each of them looks; videos by their frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem.data.images import load_image
from polysem.data.video import is_video, sample_frames
from polysem.encoders.backbones import Backbone, find_stages
from polysem.encoders.base import Encoder, Kind, Takes, Trainable, registry
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


_OURS = ("dim", "trainable", "lr_scale")
_AT_ONCE = 8
"""Frames that go through the network together when nothing is learned: more are no faster and take more memory."""


@registry.register("video_frames")
class VideoFrames(PixelEncoder):
    """Raw video: frames at even distances in time, each one token, the mean of what an image encoder makes of it.

    `encoder` is the name and the knobs of any encoder of pictures, `frames` how many are taken of each video; the time
    of each is `polysem.data.video.frame_times`. `dim`, `trainable` and `lr_scale` are those of the image encoder: they
    stand here, not among its knobs. A picture is a video of one frame.
    """

    kind = "video"

    def __init__(
        self,
        encoder: dict[str, Any] | None = None,
        frames: PositiveInt = 16,
        dim: PositiveInt | None = None,
        trainable: Trainable = "none",
        lr_scale: float = 1.0,
    ) -> None:
        super().__init__(trainable, lr_scale)
        given = dict(encoder or {"name": "grid"})
        if any(given.get(knob) is not None for knob in _OURS):
            self.reject_knobs(f"encoder={given}: {', '.join(_OURS)} are knobs of 'video_frames' itself.")
        name = str(given.pop("name", "grid"))
        if not issubclass(registry.find(name), ImageEncoder):
            self.reject_knobs(f"encoder={name!r} does not read pictures; grid, grids, patch and detector do.")
        inner = {**given, "dim": dim, "trainable": trainable, "lr_scale": lr_scale}
        built = registry.build(name, **inner)
        if not isinstance(built, ImageEncoder):
            raise TypeError(f"{name} was registered as an encoder of pictures and built {type(built).__name__}")
        self.encoder = built
        self.frames = self.pictures_per_item = frames
        self.dim = built.dim

    @classmethod
    def check_knobs(cls, knobs: Mapping[str, Any]) -> None:
        if knobs.get("encoder") is not None:
            registry.check(**{"name": "grid", **knobs["encoder"]})

    def resolved_knobs(self) -> Mapping[str, Any]:
        return {"encoder": {name: value for name, value in self.encoder.config.items() if name not in _OURS}}

    # -------------------------------------------------------------------------------------------------------- input

    @property
    def preprocessing(self) -> Preprocessing:
        return self.encoder.preprocessing

    @property
    def image_size(self) -> int:
        return self.encoder.image_size

    @property
    def tokens_per_item(self) -> int:
        return self.frames

    def read(self, path: Path, generator: torch.Generator | None = None) -> Tensor:
        """(frames, 3, image_size, image_size) of a video, (1, …) of a picture; a generator's crop is of all alike."""
        luck = None if generator is None else generator.get_state()
        if not is_video(path):
            return self.encoder.read(path, generator)[None]
        return torch.stack([self._pixels(frame.image, luck) for frame in sample_frames(path, self.frames)])

    def _pixels(self, image: Image.Image, luck: Tensor | None) -> Tensor:
        if luck is None:
            return self.encoder.preprocess(image)
        generator = torch.Generator()
        generator.set_state(luck)
        return self.encoder.augment(image, generator)

    def preprocess(self, image: Image.Image) -> Tensor:
        return self.encoder.preprocess(image)[None]

    # ------------------------------------------------------------------------------------------------------- output

    def forward(self, pixels: Tensor) -> LocalFeatures:
        """(B, F, 3, S, S) -> F tokens for each video."""
        if is_tracing():
            tokens = _mean(self.encoder(pixels.flatten(0, 1))).view(*pixels.shape[:2], -1)
            return LocalFeatures(tokens, torch.ones_like(tokens[..., 0], dtype=torch.bool))
        if not isinstance(pixels, Tensor) or pixels.ndim != 5 or 0 in pixels.shape[:2]:
            given = tuple(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
            side = self.image_size
            raise InputError(
                f"This encoder takes videos of shape (items, frames, 3, {side}, {side}), got {given}. "
                "Make them with torch.stack([encoder.read(path) for path in paths])."
            )
        learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        # Video by video: what a frame becomes does not hang on how many videos there are beside its own.
        tokens = torch.stack([self._tokens(video, len(video) if learns else _AT_ONCE) for video in pixels])
        return LocalFeatures(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device))

    def _tokens(self, video: Tensor, at_once: int) -> Tensor:
        """(F, 3, S, S) -> (F, dim): the mean of each frame's real tokens."""
        return torch.cat([_mean(self.encoder(some)) for some in video.split(at_once)])

    # ------------------------------------------------------------------------------------- the image encoder's word

    @property
    def body(self) -> nn.Module:
        return self.encoder.body

    @property
    def projection(self) -> nn.Module | None:
        return self.encoder.projection

    def stages(self) -> list[nn.Module]:
        return self.encoder.stages()

    def set_trainable(self, trainable: Trainable) -> Self:
        self.encoder.set_trainable(trainable)
        self._trainable = trainable
        return self.train(self.training)

    def deciding_knobs(self) -> Mapping[str, Any]:
        own = {name: value for name, value in super().deciding_knobs().items() if name != "encoder"}
        return {**own, "encoder": dict(self.encoder.deciding_knobs())}

    def preprocessing_bytes(self) -> Iterable[bytes]:
        return self.encoder.preprocessing_bytes()


def _mean(features: LocalFeatures) -> Tensor:
    """(B, N, D) -> (B, D)."""
    real = features.zero_padded()
    return real.values.sum(1) / real.lengths[:, None].clamp_min(1).to(real.values.dtype)
