"""Encoders of pixels: images to local features and where on the image each of them looks; videos by their frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from PIL import Image
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem import cpu_blocks
from polysem.data.images import load_image
from polysem.data.video import is_video, sample_frames
from polysem.encoders.backbones import Backbone
from polysem.encoders.base import Encoder, Kind, Takes, Trainable, registry
from polysem.encoders.preprocessing import Preprocessing, grid_boxes, side_of
from polysem.encoders.region import xavier_linear
from polysem.errors import InputError, kind
from polysem.features import LocalFeatures
from polysem.masked_ops import is_tracing
from polysem.weights import CATALOGUE, WeightsEntry, probe


class PixelEncoder(Encoder):
    """Base of encoders of pixels: `read` makes the input of a file, `preprocess` that of a picture."""

    takes: ClassVar[Takes] = "pixels"
    image_size: int
    preprocessing: Preprocessing
    pictures_per_item: int = 1
    """How many pictures an input holds: a bound on items in memory is divided by this."""

    @property
    @abstractmethod
    def tokens_per_item(self) -> int: ...

    @abstractmethod
    def read(self, path: Path, generator: torch.Generator | None = None) -> Tensor:
        """The input made of a file. generator: draws an augmentation, for training."""

    @abstractmethod
    def preprocess(self, image: Image.Image) -> Tensor:
        """The input made of a picture."""


class ImageEncoder(PixelEncoder):
    """Pictures to pixels by `preprocess` (or `augment`, to train), pixels to `LocalFeatures` by calling it."""

    kind: ClassVar[Kind] = "image"
    tiles_image: ClassVar[bool] = True
    side: int

    def __init__(
        self,
        backbone: Backbone,
        width: int,
        dim: int | None,
        seen: Preprocessing,
        trainable: Trainable,
        lr_scale: float,
    ) -> None:
        """width: of the backbone's tokens; `dim` projects them, None leaves them as they are."""
        super().__init__(trainable, lr_scale)
        self.backbone, self.backbone_config = backbone.module, backbone.config
        self.projection = xavier_linear(width, dim) if dim is not None else None
        self.dim = dim or width
        self.preprocessing, self.image_size = seen, seen.size
        self._probed: tuple[list[tuple[int, int]], list[float]] | None = None
        self.set_trainable(trainable)

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
        return self.preprocessing.augment(image, generator)

    def forward(self, pixels: Tensor) -> LocalFeatures:
        self.check(pixels)
        return self.local(self.tokens(pixels))

    @abstractmethod
    def tokens(self, pixels: Tensor) -> Tensor:
        """Checked pixels (B, 3, S, S) -> the backbone's tokens (B, N, width)."""

    def cells(self) -> Tensor:
        """(N, 4): [x0, y0, x1, y1] in 0..1 of the pixels, of each token in order: a grid of side x side cells."""
        return grid_boxes(self.side, self.side)

    def grid(self, width: int, height: int) -> tuple[int, int] | None:
        """(rows, columns) of the tokens of a picture of this size; None where every picture has the same square."""
        return None

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
            raise InputError(
                f"This encoder takes pixels of shape (items, 3, {side}, {side}), got {kind(pixels)}. "
                "Make them with torch.stack([encoder.preprocess(image) for image in images])."
            )

    def find_catalogue_weights(self) -> WeightsEntry | None:
        """The entry of `model`, if its backbone is frozen and answers the probe picture as the catalogue says."""
        entry = CATALOGUE.get(str(self.config.get("model")))
        if entry is None or entry.probe is None or self.config.get("trainable") != "none":
            return None
        return entry if probe.agree(self.answer_probe(), entry.probe) else None

    def answer_probe(self) -> list[float]:
        """What the backbone answers to the probe picture; asked again only when its weights were changed."""
        stamp = [(parameter.data_ptr(), parameter._version) for parameter in self.backbone.parameters()]
        if self._probed is None or self._probed[0] != stamp:
            side, answer = side_of(self.backbone_config) or self.image_size, list[float]()
            # On one core, by a worker: on a busy machine torch's threads, which meet after every operation, took 3.0 s
            # for one picture, not 0.2.
            ask = [lambda: answer.extend(probe.ask(self.backbone, side)), lambda: None]
            cpu_blocks.run(ask, next(self.backbone.parameters()).device)
            self._probed = stamp, answer
        return self._probed[1]

    def train(self, mode: bool = True) -> Self:
        """Training mode, in which the backbone's BatchNorm keeps the statistics it was pretrained with."""
        super().train(mode)
        for module in self.backbone.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def resolved_knobs(self) -> Mapping[str, Any]:
        seen = self.preprocessing
        pixels = {"mean": list(seen.mean), "std": list(seen.std), "interpolation": seen.interpolation}
        return {"pretrained": False, "backbone_config": self.backbone_config, "image_size": seen.size, **pixels}


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
        inner = registry.build(name, **{**given, "dim": dim, "trainable": trainable, "lr_scale": lr_scale})
        self.encoder = cast(ImageEncoder, inner)
        self.frames = self.pictures_per_item = frames
        self.dim, self.image_size, self.preprocessing = inner.dim, self.encoder.image_size, self.encoder.preprocessing

    @classmethod
    def check_knobs(cls, knobs: Mapping[str, Any]) -> None:
        if knobs.get("encoder") is not None:
            registry.check(**{"name": "grid", **knobs["encoder"]})

    def resolved_knobs(self) -> Mapping[str, Any]:
        return {"encoder": {name: value for name, value in self.encoder.config.items() if name not in _OURS}}

    @property
    def tokens_per_item(self) -> int:
        return self.frames

    def read(self, path: Path, generator: torch.Generator | None = None) -> Tensor:
        """(frames, 3, image_size, image_size) of a video, (1, …) of a picture; a generator's crop is of all alike."""
        if not is_video(path):
            return self.encoder.read(path, generator)[None]
        images = (frame.image for frame in sample_frames(path, self.frames))
        if generator is None:
            return torch.stack([self.encoder.preprocess(image) for image in images])
        state = generator.get_state()
        return torch.stack([self.encoder.augment(image, torch.Generator().set_state(state)) for image in images])

    def preprocess(self, image: Image.Image) -> Tensor:
        return self.encoder.preprocess(image)[None]

    def forward(self, pixels: Tensor) -> LocalFeatures:
        """(B, F, 3, S, S) -> F tokens for each video."""
        if is_tracing():
            tokens = _mean(self.encoder(pixels.flatten(0, 1))).view(*pixels.shape[:2], -1)
            return LocalFeatures(tokens, torch.ones_like(tokens[..., 0], dtype=torch.bool))
        if not isinstance(pixels, Tensor) or pixels.ndim != 5 or 0 in pixels.shape[:2]:
            side = self.image_size
            raise InputError(
                f"This encoder takes videos of shape (items, frames, 3, {side}, {side}), got {kind(pixels)}. "
                "Make them with torch.stack([encoder.read(path) for path in paths])."
            )
        learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        # Video by video: what a frame becomes does not hang on how many videos there are beside its own.
        at_once = pixels.shape[1] if learns else _AT_ONCE
        tokens = torch.stack([torch.cat([_mean(self.encoder(some)) for some in v.split(at_once)]) for v in pixels])
        return LocalFeatures(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device))

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
        return {**super().deciding_knobs(), "encoder": dict(self.encoder.deciding_knobs())}


def _mean(features: LocalFeatures) -> Tensor:
    """(B, N, D) -> (B, D): the mean of each item's real tokens."""
    real = features.zero_padding()
    return real.values.sum(1) / real.lengths[:, None].clamp_min(1).to(real.values.dtype)
