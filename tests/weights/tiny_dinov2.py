"""A tiny DINOv2 as an ONNX file, laid out as the exported network is, and as the model hub would have it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model

onnx = pytest.importorskip("onnx")

WIDTH, LAYERS, HIDDEN = 64, 2, 256


def tiny_graph(path, seed=0):
    """An ONNX file with tensors named and laid out as in the exported network; and the tensors by DINOv2's names."""
    generator = torch.Generator().manual_seed(seed)
    tensors, initialisers, nodes = {}, [], []

    def draw(*shape, scale=0.1):
        return torch.randn(*shape, generator=generator) * scale

    def keep(name, tensor, stored=None):
        tensors[name] = tensor
        initialisers.append(
            onnx.numpy_helper.from_array(np.ascontiguousarray(tensor.numpy()), stored or f"model.{name}")
        )

    keep("cls_token", draw(1, 1, WIDTH))
    keep("positions", draw(1, 37 * 37, WIDTH), "onnx::Reshape_1")
    keep("patch_embed.proj.weight", draw(WIDTH, 3, 14, 14))
    keep("patch_embed.proj.bias", draw(WIDTH))
    shapes = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)}
    shapes |= {"mlp.fc1": (HIDDEN, WIDTH), "mlp.fc2": (WIDTH, HIDDEN)}
    for block in range(LAYERS):
        for name in ("norm1", "norm2"):
            keep(f"blocks.{block}.{name}.weight", 1 + draw(WIDTH))
            keep(f"blocks.{block}.{name}.bias", draw(WIDTH))
        for number in (1, 2):
            keep(f"blocks.{block}.ls{number}.gamma", 1 + draw(WIDTH))
        for name, (rows, columns) in shapes.items():
            keep(f"blocks.{block}.{name}.bias", draw(rows))
            weight, stored = draw(rows, columns), f"onnx::MatMul_{block}_{name}"
            keep(f"blocks.{block}.{name}.weight", weight.t(), stored)
            tensors[f"blocks.{block}.{name}.weight"] = weight
            place = f"/blocks.{block}/{name.replace('.', '/')}/MatMul"
            nodes.append(
                onnx.helper.make_node("MatMul", [f"x{len(nodes)}", stored], [f"x{len(nodes) + 1}"], name=place)
            )
    keep("norm.weight", 1 + draw(WIDTH))
    keep("norm.bias", draw(WIDTH))
    graph = onnx.helper.make_graph(nodes, "dinov2", [], [], initialisers)
    onnx.save(onnx.helper.make_model(graph), path)
    return tensors


@torch.no_grad()
def save_hub_copy(converted: Dinov2Model, tensors: dict[str, Tensor], folder: Path) -> None:
    """The same network with the 37 x 37 positions that the hub's copy has."""
    config = Dinov2Config(
        hidden_size=WIDTH, num_attention_heads=1, num_hidden_layers=LAYERS, image_size=518, patch_size=14
    )
    hub = Dinov2Model(config)
    hub.load_state_dict(
        {name: value for name, value in converted.state_dict().items() if "position" not in name}, strict=False
    )
    hub.embeddings.position_embeddings.copy_(torch.cat([tensors["cls_token"], tensors["positions"]], 1))
    hub.save_pretrained(folder)
