"""A DINOv2 graph becomes a Hugging Face folder that computes the same."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F
from transformers import Dinov2Model

from polysem.weights import dinov2
from weights.tiny_dinov2 import LAYERS, WIDTH, save_hub_copy, tiny_graph


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
    save_hub_copy(ours, tensors, tmp_path / "hub")
    dinov2.convert_hub(tmp_path / "hub", tmp_path / "from-hub")
    theirs = Dinov2Model.from_pretrained(tmp_path / "from-hub").state_dict()
    assert theirs.keys() == ours.state_dict().keys()
    assert all(torch.equal(theirs[name], value) for name, value in ours.state_dict().items())
