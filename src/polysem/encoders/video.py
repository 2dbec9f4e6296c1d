from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem.data.video import is_video, sample_frames
from polysem.encoders.base import Trainable, registry
from polysem.encoders.image import ImageEncoder, PixelEncoder
from polysem.encoders.preprocessing import Preprocessing
from polysem.errors import InputError
from polysem.features import LocalFeatures
from polysem.masked_ops import is_tracing

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
