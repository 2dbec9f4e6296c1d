"""The probe: a fixed picture, whose answer tells one image network from another.

Files of the same network differ from source to source, down to the last digits of their numbers; its answer does not.
An answer is the class token and the mean of the patches, every few of their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polysem.weights.dinov2 import hide_bars

TOLERANCE = 1e-3
"""How far two answers may lie apart, relative to their length, and be of the same network."""
_NUMBERS = 24


def probe_picture(side: int) -> Tensor:
    """(1, 3, side, side): pixels with edges, waves and a slope, the same on every machine."""
    y, x = np.meshgrid(np.linspace(0, 1, side), np.linspace(0, 1, side), indexing="ij")
    channels = [
        np.sin(19 * x + 5 * y) + x,
        np.cos(7 * x * y + 11 * y) - y,
        np.where((x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.07, 1.5, -0.8) + 0.3 * np.sin(60 * y),
    ]
    return torch.from_numpy(np.stack(channels)[None].astype(np.float32))


@torch.no_grad()
def ask(network: nn.Module, side: int) -> list[float]:
    """The answer of a vision transformer of transformers, in evaluation mode, to the probe picture of this side."""
    parameter = next(network.parameters())
    training = network.training
    network.eval()
    try:
        states = network(probe_picture(side).to(parameter.device, parameter.dtype)).last_hidden_state[0].float().cpu()
    finally:
        network.train(training)
    step = max(1, states.shape[-1] // _NUMBERS)
    chosen = torch.stack([states[0], states[1:].mean(0)])[:, ::step][:, :_NUMBERS]
    return [round(float(number), 5) for number in chosen.flatten()]


def ask_folder(folder: Path) -> list[float]:
    """The answer of the model in a Hugging Face folder."""
    from transformers import AutoModel

    with hide_bars():
        network: Any = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return ask(network, int(network.config.image_size))


def agree(answer: Sequence[float], expected: Sequence[float]) -> bool:
    """Whether two answers are of the same network."""
    if len(answer) != len(expected):
        return False
    one, other = np.asarray(answer), np.asarray(expected)
    return bool(np.linalg.norm(one - other) <= TOLERANCE * np.linalg.norm(other))


def describe(answer: Sequence[float]) -> str:
    """The first numbers, for messages."""
    return "[" + ", ".join(f"{number:.3f}" for number in answer[:3]) + ", …]"
