"""A tiny exported network: a convolution of 8 x 8 patches, its map in several layouts, and a head of no use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

WIDTH, SIDE = 5, 32


def save_graph(
    path: Path, output: str = "map", batch: int | str = "batch", side: int | str = SIDE, seed: int = 0
) -> Path:
    """output: what the graph gives: map (NCHW), last (NHWC), tokens, with_cls, or head, which is no grid."""
    rng, helper = np.random.default_rng(seed), onnx.helper
    weights = {
        "kernel": rng.normal(size=(WIDTH, 3, 8, 8)).astype(np.float32) / 10,
        "bias": rng.normal(size=WIDTH).astype(np.float32),
        "flat": np.array([0, WIDTH, -1]),
    }
    nodes = [
        helper.make_node("Conv", ["input", "kernel", "bias"], ["conv"], strides=[8, 8]),
        helper.make_node("Relu", ["conv"], ["map"]),
        helper.make_node("Transpose", ["map"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["map", "flat"], ["flattened"]),
        helper.make_node("Transpose", ["flattened"], ["tokens"], perm=[0, 2, 1]),
        helper.make_node("ReduceMean", ["tokens", "axis"], ["mean"], keepdims=1),
        helper.make_node("Concat", ["mean", "tokens"], ["with_cls"], axis=1),
        helper.make_node("ReduceMax", ["mean", "axis"], ["head"], keepdims=0),
    ]
    weights["axis"] = np.array([1])
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, [batch, 3, side, side])],
        [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
