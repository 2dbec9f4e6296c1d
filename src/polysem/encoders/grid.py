from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from polysem.encoders import backbones, efficientnet_lite, hf_preprocessing, weight_lookup
from polysem.encoders.backbones import Backbone
from polysem.encoders.base import Trainable, registry
from polysem.encoders.image import ImageEncoder
from polysem.encoders.preprocessing import Channels, Interpolation, Resize, grid_boxes
from polysem.errors import ConfigError


@registry.register("grid")
class Grid(ImageEncoder):
    """A convolutional network's last feature map, each cell a token: ResNet, ConvNeXt, RegNet, Swin, BiT, EfficientNet.

    `model` is efficientnet-lite0, -lite1 or -lite2 (weights from their packages), the folder of a Hugging Face model,
    or a name on the hub. `dim` adds a linear projection. `trainable`, `lr_scale`: see `Encoder`. BatchNorm
    always keeps its pretrained statistics.

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
            backbone = _efficientnet_lite(model, pretrained)
            mean, std = mean or efficientnet_lite.MEAN, std or efficientnet_lite.STD
            interpolation = interpolation or "bicubic"
        else:
            backbone = backbones.load(model, pretrained, backbone_config, _choose)
        seen = hf_preprocessing.preprocessing(
            backbone.folder, backbone.config, image_size, resize, mean, std, interpolation
        )
        # How wide a network's features are and how often it halves its input is in no common config: ask it once.
        with torch.no_grad():
            device = next(backbone.module.parameters()).device
            _, cells, width = grid_tokens(backbone.module, torch.zeros(1, 3, seen.size, seen.size, device=device)).shape
        super().__init__(backbone, width, dim, seen, trainable, lr_scale)
        self.side = math.isqrt(cells)

    def tokens(self, pixels: Tensor) -> Tensor:
        return grid_tokens(self.backbone, pixels)

    def cells(self) -> Tensor:
        return grid_boxes(self.side, self.side)


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


def _efficientnet_lite(model: str, pretrained: bool) -> Backbone:
    config = efficientnet_lite.config(model)
    network = efficientnet_lite.EfficientNetLite(config["width"], config["depth"])
    if pretrained:
        efficientnet_lite.load_weights(network, weight_lookup.locate(model))
    return Backbone(network.eval(), config)


def _choose(config: Any) -> tuple[Any, Any]:
    mapping = backbones.transformers().MODEL_MAPPING
    if type(config) not in mapping:
        raise ConfigError(f"The grid encoder cannot read a {config.model_type!r} model. Give a convolutional network.")
    return mapping[type(config)], config
