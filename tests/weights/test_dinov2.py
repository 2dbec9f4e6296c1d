"""A DINOv2 graph becomes a Hugging Face folder that computes the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import Dinov2Config, Dinov2Model

from polysem.weights import dinov2

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


def forward(tensors, pixels):
    """DINOv2's forward pass spelt out, with the graph's bilinear positions."""
    grid = tensors["positions"].reshape(1, 37, 37, WIDTH).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, scale_factor=(16.1 / 37, 16.1 / 37), mode="bilinear")
    x = F.conv2d(pixels, tensors["patch_embed.proj.weight"], tensors["patch_embed.proj.bias"], stride=14)
    x = torch.cat([tensors["cls_token"].expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
    x = x + torch.cat([tensors["cls_token"], grid.flatten(2).transpose(1, 2)], 1)
    for block in range(LAYERS):
        own = {name.removeprefix(f"blocks.{block}."): value for name, value in tensors.items()}

        def linear(y, name, own=own):
            return y @ own[f"{name}.weight"].t() + own[f"{name}.bias"]

        def norm(y, name, own=own):
            return F.layer_norm(y, (WIDTH,), own[f"{name}.weight"], own[f"{name}.bias"], eps=1e-6)

        q, k, v = linear(norm(x, "norm1"), "attn.qkv").chunk(3, dim=-1)
        attended = (q @ k.transpose(1, 2) / math.sqrt(WIDTH)).softmax(-1) @ v  # one head of 64
        x = x + linear(attended, "attn.proj") * own["ls1.gamma"]
        x = x + linear(F.gelu(linear(norm(x, "norm2"), "mlp.fc1")), "mlp.fc2") * own["ls2.gamma"]
    return F.layer_norm(x, (WIDTH,), tensors["norm.weight"], tensors["norm.bias"], eps=1e-6)


@torch.no_grad()
def test_the_folder_computes_what_the_graph_does(tmp_path):
    tensors = tiny_graph(tmp_path / "graph.onnx")
    dinov2.convert_graph(tmp_path / "graph.onnx", tmp_path / "model")
    model = Dinov2Model.from_pretrained(tmp_path / "model").eval()
    pixels = torch.randn(2, 3, 224, 224)
    torch.testing.assert_close(model(pixels).last_hidden_state, forward(tensors, pixels), rtol=0, atol=1e-4)
    assert model(torch.randn(1, 3, 140, 140)).last_hidden_state.shape == (1, 101, WIDTH)


@torch.no_grad()
def test_the_hubs_copy_and_the_graph_become_the_same_network(tmp_path):
    tensors = tiny_graph(tmp_path / "graph.onnx")
    dinov2.convert_graph(tmp_path / "graph.onnx", tmp_path / "from-graph")
    ours = Dinov2Model.from_pretrained(tmp_path / "from-graph")
    config = Dinov2Config(
        hidden_size=WIDTH, num_attention_heads=1, num_hidden_layers=LAYERS, image_size=518, patch_size=14
    )
    hub = Dinov2Model(config)
    state = {name: value for name, value in ours.state_dict().items() if "position" not in name}
    hub.load_state_dict(state, strict=False)
    hub.embeddings.position_embeddings.copy_(torch.cat([tensors["cls_token"], tensors["positions"]], 1))
    hub.save_pretrained(tmp_path / "hub")
    dinov2.convert_hub(tmp_path / "hub", tmp_path / "from-hub")
    theirs = Dinov2Model.from_pretrained(tmp_path / "from-hub").state_dict()
    assert theirs.keys() == ours.state_dict().keys()
    assert all(torch.equal(theirs[name], value) for name, value in ours.state_dict().items())
