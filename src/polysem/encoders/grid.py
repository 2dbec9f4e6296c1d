"""Encoders of images by a backbone's last feature map: of one network, of several, of a vision transformer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from polysem.encoders import backbones, efficientnet_lite
from polysem.encoders.backbones import Backbone, find_stages
from polysem.encoders.base import Trainable, parameters_from, registry
from polysem.encoders.cpu import packed_weights
from polysem.encoders.image import ImageEncoder
from polysem.encoders.preprocessing import Channels, Interpolation, Preprocessing, Resize, read_preprocessing, side_of
from polysem.errors import ConfigError


@registry.register("grid")
class Grid(ImageEncoder):
    """A convolutional network's last feature map, each cell a token: ResNet, ConvNeXt, RegNet, Swin, BiT, EfficientNet.

    `model` is efficientnet-lite0, -lite1 or -lite2 (weights from their packages), the folder of a Hugging Face model,
    or a name on the hub. `dim` adds a linear projection. BatchNorm always keeps its pretrained statistics.

    What is None is read from the model's files. A built encoder's config holds it all, and `backbone_config` too, so
    that it can be rebuilt without those files; `pretrained=False` takes no weights.
    """

    def __init__(
        self,
        model: str = "efficientnet-lite0",
        dim: PositiveInt | None = None,
        image_size: PositiveInt | None = None,
        resize: Resize = "stretch",
        mean: Channels | None = None,
        std: Channels | None = None,
        interpolation: Interpolation | None = None,
        trainable: Trainable = "none",
        lr_scale: float = 1.0,
        pretrained: bool = True,
        backbone_config: dict[str, Any] | None = None,
    ) -> None:
        family = (backbone_config or {}).get("model_type")
        if model in efficientnet_lite.SIZES and family in (None, "efficientnet-lite"):
            backbone = efficientnet_lite.load(model, pretrained)
            mean, std = mean or efficientnet_lite.MEAN, std or efficientnet_lite.STD
            interpolation = interpolation or "bicubic"
        else:
            backbone = backbones.load(model, pretrained, backbone_config, _choose)
        seen = read_preprocessing(backbone.folder, backbone.config, image_size, resize, mean, std, interpolation)
        # How wide a network's features are and how often it halves its input is in no common config: ask it once.
        with torch.no_grad():
            device = next(backbone.module.parameters()).device
            _, cells, width = grid_tokens(backbone.module, torch.zeros(1, 3, seen.size, seen.size, device=device)).shape
        super().__init__(backbone, width, dim, seen, trainable, lr_scale)
        self.side = math.isqrt(cells)

    def tokens(self, pixels: Tensor) -> Tensor:
        return grid_tokens(self.backbone, pixels)


def grid_tokens(backbone: nn.Module, pixels: Tensor) -> Tensor:
    """(B, 3, S, S) -> (B, side * side, width): the last feature map, row by row."""
    # Channels last: convolutions on a CPU run up to twice as fast. Not their gradients: with few channels oneDNN's
    # backward pass in this layout writes outside its memory (torch 2.13).
    learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in backbone.parameters())
    if pixels.device.type != "cpu" or not learns:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    output = backbone(pixels)
    final: Tensor = output if isinstance(output, Tensor) else output.last_hidden_state
    if final.ndim == 4:
        return final.flatten(2).transpose(1, 2)
    # Swin already returns a sequence; DINOv3's ConvNeXt puts a pooled token before it.
    return final[:, final.shape[1] - math.isqrt(final.shape[1]) ** 2 :]


def _choose(config: Any) -> tuple[Any, Any]:
    mapping = backbones.transformers().MODEL_MAPPING
    if type(config) not in mapping:
        raise ConfigError(f"grid cannot read a {config.model_type!r} model. Give a convolutional network.")
    return mapping[type(config)], config


@registry.register("grids")
class Grids(ImageEncoder):
    """The last feature maps of several networks, averaged to one grid of cells x cells, their channels side by side.

    Each network sees the picture at its own size (`sizes`, None for what it was trained on), made smaller from that of
    the largest. All must take the same kind of pixels (mean, std, interpolation). `trainable` counts the last stages of
    every network; all else is as in `Grid`.
    """

    def __init__(
        self,
        models: Annotated[list[str], Field(min_length=1)],
        sizes: list[PositiveInt] | None = None,
        cells: PositiveInt = 3,
        dim: PositiveInt | None = None,
        image_size: PositiveInt | None = None,
        resize: Resize = "stretch",
        mean: Channels | None = None,
        std: Channels | None = None,
        interpolation: Interpolation | None = None,
        trainable: Trainable = "none",
        lr_scale: float = 1.0,
        pretrained: bool = True,
        backbone_config: dict[str, Any] | None = None,
    ) -> None:
        wanted = [None] * len(models) if sizes is None else sizes
        stored = [None] * len(models) if backbone_config is None else backbone_config.get("grids", ())
        if len(wanted) != len(models):
            self.reject_knobs(f"sizes={sizes}: give one for each of the models {models}, or leave them out.")
        if len(stored) != len(models):
            self.reject_knobs(f"backbone_config holds {len(stored)} networks under 'grids' for {len(models)} models.")
        pixels: dict[str, Any] = {"resize": resize, "mean": mean, "std": std, "interpolation": interpolation}
        grids = [
            Grid(model, image_size=size, **pixels, pretrained=pretrained, backbone_config=config)
            for model, size, config in zip(models, wanted, stored, strict=True)
        ]
        largest = max((grid.preprocessing for grid in grids), key=lambda seen: seen.size)
        if image_size not in (None, largest.size):
            self.reject_knobs(f"image_size={image_size} is not the largest of the sizes, {largest.size}: leave it out.")
        for model, grid in zip(models, grids, strict=True):
            if replace(grid.preprocessing, size=largest.size) != largest:
                self.reject_knobs(
                    f"the models take different pixels: {model} {_describe_pixels(grid.preprocessing)}, another "
                    f"{_describe_pixels(largest)}. Take others, or give mean, std and interpolation for all."
                )
        configs = {"grids": [grid.backbone_config for grid in grids]}
        backbone = Backbone(nn.ModuleList(grid.backbone for grid in grids), configs)
        super().__init__(backbone, sum(grid.dim for grid in grids), dim, largest, trainable, lr_scale)
        self.sizes, self.side = [grid.image_size for grid in grids], cells
        for place, grid in enumerate(grids):
            self.register_buffer(f"average_{place}", area_weights(cells, grid.side), persistent=False)

    def tokens(self, pixels: Tensor) -> Tensor:
        maps = []
        for place, (network, size) in enumerate(zip(self.networks, self.sizes, strict=True)):
            seen = pixels if size == self.image_size else F.interpolate(pixels, (size, size), mode="bilinear")
            maps.append(self.get_buffer(f"average_{place}") @ grid_tokens(network, seen))
        return torch.cat(maps, dim=-1)

    @property
    def networks(self) -> list[nn.Module]:
        return list(self.backbone.children())

    def stages(self) -> list[nn.Module]:
        """The networks' stages side by side, counted from the last: as many as the shallowest has."""
        from_the_last = zip(*(reversed(find_stages(network)) for network in self.networks), strict=False)
        joined: list[nn.Module] = [nn.ModuleList(stages) for stages in from_the_last]
        return joined[::-1]

    def last_stages(self, n: int) -> list[nn.Parameter]:
        return [p for network in self.networks for p in parameters_from(network, find_stages(network)[-n])]

    def resolved_knobs(self) -> dict[str, Any]:
        return {**super().resolved_knobs(), "sizes": self.sizes}


def area_weights(cells: int, side: int) -> Tensor:
    """(cells * cells, side * side): the share, by area, that each cell of a side x side map has in each new cell."""
    # In units of 1 / (cells * side), in which the edges of both are whole numbers.
    new, old = torch.arange(cells)[:, None] * side, torch.arange(side)[None] * cells
    rows = (torch.minimum(new + side, old + cells) - torch.maximum(new, old)).clamp(min=0) / side
    return torch.kron(rows, rows)


def _describe_pixels(seen: Preprocessing) -> str:
    mean, std = ([round(channel, 3) for channel in channels] for channels in (seen.mean, seen.std))
    return f"of mean {mean}, std {std}, {seen.interpolation}"


@registry.register("patch")
class Patch(ImageEncoder):
    """A vision transformer's last hidden states, each patch a token: ViT, CLIP, SigLIP, DINOv2, DINOv3.

    `model` is the folder of a Hugging Face model or a name on the hub; of a CLIP or SigLIP pair the vision half is
    taken. `cls` keeps the class token, where there is one: True before the patches, its place is the whole picture;
    "beside" joins it to every patch, so that a token is twice as wide and each says what the picture is, too. Register
    tokens are dropped. `grid` averages the patches to grid x grid cells: fewer tokens to store and to train on. Another
    `image_size` than the trained interpolates positions. The other knobs are as in `Grid`.
    """

    added_knobs = frozenset({"grid"})

    def __init__(
        self,
        model: str,
        dim: PositiveInt | None = None,
        cls: bool | Literal["beside"] = True,
        image_size: PositiveInt | None = None,
        resize: Resize = "stretch",
        mean: Channels | None = None,
        std: Channels | None = None,
        interpolation: Interpolation | None = None,
        trainable: Trainable = "none",
        lr_scale: float = 1.0,
        pretrained: bool = True,
        backbone_config: dict[str, Any] | None = None,
        grid: PositiveInt | None = None,
    ) -> None:
        backbone = backbones.load(model, pretrained, backbone_config, _choose_transformer)
        config = backbone.config
        seen = read_preprocessing(backbone.folder, config, image_size, resize, mean, std, interpolation)
        beside = cls == "beside" and _makes_cls(config)
        super().__init__(backbone, config["hidden_size"] * (2 if beside else 1), dim, seen, trainable, lr_scale)
        if cls == "beside" and not beside:
            self.reject_knobs(f"cls='beside': a {config['model_type']!r} model has no class token. Give cls=False.")
        if seen.size % config["patch_size"]:
            self.reject_knobs(f"image_size={seen.size} is not a multiple of the patch size {config['patch_size']}.")
        self.patches = seen.size // config["patch_size"]
        self.side = grid or self.patches
        if self.side > self.patches:
            self.reject_knobs(f"grid={grid}: a picture has {self.patches} x {self.patches} patches.")
        if grid is not None:
            self.register_buffer("average", area_weights(grid, self.patches), persistent=False)
        self.registers = int(config.get("num_register_tokens") or 0)
        self.keep_cls, self.cls_beside = cls is True, beside
        # DINOv3 and some others take any size as they are, and know no such argument.
        knows = "interpolate_pos_encoding" in inspect.signature(self.backbone.forward).parameters
        self.arguments = {"interpolate_pos_encoding": True} if knows and seen.size != side_of(config) else {}

    @property
    def has_cls(self) -> bool:
        """Whether the class token is one of this encoder's tokens."""
        return self.keep_cls and _makes_cls(self.backbone_config)

    def tokens(self, pixels: Tensor) -> Tensor:
        states: Tensor = packed_weights.run(self.backbone, pixels, **self.arguments).last_hidden_state
        patches = states[:, -(self.patches**2) :]
        if self.side != self.patches:
            patches = self.get_buffer("average") @ patches
        if self.cls_beside:
            return torch.cat([patches, states[:, :1].expand(-1, patches.shape[1], -1)], dim=2)
        return torch.cat([states[:, :1], patches], dim=1) if self.has_cls else patches

    def cells(self) -> Tensor:
        return torch.cat([torch.tensor([[0.0, 0.0, 1.0, 1.0]]), super().cells()]) if self.has_cls else super().cells()


def _makes_cls(config: Mapping[str, Any]) -> bool:
    return not str(config["model_type"]).startswith("siglip")


def _choose_transformer(config: Any) -> tuple[Any, Any]:
    config = getattr(config, "vision_config", None) or config
    mapping = backbones.transformers().MODEL_MAPPING
    sized = isinstance(getattr(config, "patch_size", None), int) and hasattr(config, "hidden_size")
    if type(config) not in mapping or not sized or side_of(config.to_dict()) is None:
        raise ConfigError(f"patch cannot read a {config.model_type!r} model. Give ViT, CLIP, SigLIP, DINOv2 or DINOv3.")
    if hasattr(config, "vision_use_head"):
        config.vision_use_head = False  # SigLIP's pooling head is not ours to use
    return mapping[type(config)], config
