"""DINOv2 as a Hugging Face folder, from an ONNX graph of it or from the hub's copy.

Both give the same network: positions are resampled once to the 16 x 16 patches of a 224 px picture, the way the graph
does it (bilinear, by a factor of 16.1 / 37). transformers would resample the hub's 37 x 37 positions in another way
at each call, and tokens would differ by 5 %. Other picture sizes are interpolated from the 16 x 16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polysem.environment.packages import install_command
from polysem.errors import ConfigError

SIDE = 16
"""Patches on a side of a 224 px picture."""
_TRAINED_SIDE, _PATCH, _HEAD = 37, 14, 64
# As the hub's preprocessor_config.json says.
_PREPROCESSING = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def convert_graph(graph: Path, folder: Path) -> None:
    """Write the Hugging Face folder of the network in an ONNX file. Tensors are read, nothing of the graph is run."""
    tensors = _read_tensors(graph)
    # The exporter stores equal tensors once: the class token's position is the class token.
    positions = next(value for value in tensors.values() if value.shape[:2] == (1, _TRAINED_SIDE**2))
    state = {
        "embeddings.cls_token": tensors["cls_token"],
        "embeddings.position_embeddings": torch.cat([tensors["cls_token"], _resample(positions)], 1),
        "embeddings.patch_embeddings.projection.weight": tensors["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": tensors["patch_embed.proj.bias"],
        "layernorm.weight": tensors["norm.weight"],
        "layernorm.bias": tensors["norm.bias"],
    }
    layers = sum(name.endswith("attn.qkv.bias") for name in tensors)
    for layer in range(layers):
        theirs, ours = f"blocks.{layer}", f"encoder.layer.{layer}"
        for kind in ("weight", "bias"):
            thirds = tensors[f"{theirs}.attn.qkv.{kind}"].chunk(3)
            state |= {f"{ours}.attention.{name}_proj.{kind}": third for name, third in zip("qkv", thirds, strict=True)}
            state[f"{ours}.attention.o_proj.{kind}"] = tensors[f"{theirs}.attn.proj.{kind}"]
            for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                state[f"{ours}.{part}.{kind}"] = tensors[f"{theirs}.{part}.{kind}"]
        for number in (1, 2):
            state[f"{ours}.layer_scale{number}.lambda1"] = tensors[f"{theirs}.ls{number}.gamma"]
    _save(state, folder)


def convert_hub(source: Path, folder: Path) -> None:
    """Write the same folder from the hub's copy of the model."""
    from transformers import Dinov2Model

    with hide_bars():
        state = Dinov2Model.from_pretrained(source, local_files_only=True, dtype=torch.float32).state_dict()
    state.pop("embeddings.mask_token", None)
    positions = state["embeddings.position_embeddings"]
    if positions.shape[1] == _TRAINED_SIDE**2 + 1:
        state["embeddings.position_embeddings"] = torch.cat([positions[:, :1], _resample(positions[:, 1:])], 1)
    _save(state, folder)


def import_onnx() -> Any:
    """The package onnx, or an error that says how to install it."""
    try:
        return import_module("onnx")
    except ImportError:
        raise ConfigError(f"Reading the ONNX graph needs the package onnx. Run: {install_command('offline')}") from None


@contextmanager
def hide_bars() -> Iterator[None]:
    """No progress bars of transformers within the block: reading a local file takes no time worth one."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _read_tensors(graph: Path) -> dict[str, Tensor]:
    """The initialisers by their name in DINOv2's own code; weights of products stand transposed in the graph."""
    onnx = import_onnx()
    numpy_helper = onnx.numpy_helper
    content = onnx.load(graph).graph
    arrays = {entry.name: torch.from_numpy(np.array(numpy_helper.to_array(entry))) for entry in content.initializer}
    tensors = {name.removeprefix("model."): array for name, array in arrays.items()}
    for node in content.node:
        # /blocks.0/attn/qkv/MatMul reads onnx::MatMul_1368
        if node.op_type == "MatMul" and node.input[1] in arrays:
            name = node.name.removeprefix("/").removesuffix("/MatMul").replace("/", ".")
            tensors[f"{name}.weight"] = arrays[node.input[1]].t()
    return tensors


def _resample(positions: Tensor) -> Tensor:
    """(1, 37 * 37, D) -> (1, 16 * 16, D)."""
    grid = positions.reshape(1, _TRAINED_SIDE, _TRAINED_SIDE, -1).permute(0, 3, 1, 2)
    factor = (SIDE + 0.1) / _TRAINED_SIDE
    return F.interpolate(grid, scale_factor=(factor, factor), mode="bilinear").flatten(2).transpose(1, 2)


def _save(state: dict[str, Any], folder: Path) -> None:
    from transformers import Dinov2Config, Dinov2Model

    width, hidden = (state[f"encoder.layer.0.{name}.weight"].shape[0] for name in ("norm1", "mlp.fc1"))
    config = Dinov2Config(
        hidden_size=width,
        mlp_ratio=hidden // width,
        num_hidden_layers=sum(name.endswith("norm1.weight") for name in state),
        num_attention_heads=width // _HEAD,
        patch_size=_PATCH,
        image_size=_PATCH * SIDE,
        use_mask_token=False,
    )
    with hide_bars():
        model = Dinov2Model(config)
        model.load_state_dict({name: tensor.contiguous() for name, tensor in state.items()})
        model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(_PREPROCESSING, indent=2) + "\n", encoding="utf-8")
