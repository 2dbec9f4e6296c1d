"""Whether a written graph computes what the model does: several batch sizes and lengths, and each item by itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from polysem.environment.packages import install_command
from polysem.export.graphs import Graph, SimilarityGraph
from polysem.export.tracing import ExportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Outputs = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Agreement:
    """difference: the largest between a number of onnxruntime's and torch's. alone: between an item's numbers in its
    batch and by itself, without padding, both by onnxruntime. batches: how many were tried."""

    difference: float
    alone: float
    batches: int


def compare(graph: Graph, path: Path) -> Agreement:
    """The written graph against the model as it always runs."""
    session = open_session(path)
    samples = graph.samples()
    difference = alone = 0.0
    for batch in samples:
        found = _run(session, graph, batch)
        with torch.inference_mode():
            expected = graph(*batch).numpy()
        difference = max(difference, _largest(found, expected))
        if not isinstance(graph, SimilarityGraph):
            alone = max(
                alone, *(_largest(_run(session, graph, one), found[[i]]) for i, one in enumerate(_items(batch)))
            )
    return Agreement(difference, alone, len(samples))


def open_session(path: Path) -> Any:
    """onnxruntime, on as many threads as torch uses here."""
    runtime = require_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    return runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])


def require_runtime() -> Any:
    try:
        import_module("onnx")  # which torch.onnx asks for
        return import_module("onnxruntime")
    except ImportError as error:
        raise ExportError(f"The export to ONNX needs {error.name}. Run: {install_command('onnx')}") from None


def _run(session: Any, graph: Graph, batch: tuple[Tensor, ...]) -> Any:
    named = {port.name: given.numpy() for port, given in zip(graph.inputs, batch, strict=True)}
    try:
        return session.run(None, named)[0]
    except Exception as error:  # onnxruntime's own types differ from release to release
        shapes = ", ".join(str(tuple(given.shape)) for given in batch)
        reason = str(error).strip().splitlines()[0]
        raise ExportError(
            f"The {graph.part} was written as ONNX, but onnxruntime cannot run it on inputs of shape {shapes}: {reason}"
        ) from error


def _items(batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """Each item by itself. The mask, where there is one, comes second."""
    if len(batch) == 1:
        return [(row[None],) for row in batch[0]]
    values, mask = batch
    return [
        (row[None, : int(real.sum())], real[None, : int(real.sum())]) for row, real in zip(values, mask, strict=True)
    ]


def _largest(found: Any, expected: Any) -> float:
    if found.shape != expected.shape:
        raise ExportError(f"The graph gives an output of shape {found.shape}, the model one of {expected.shape}.")
    # NaN is never equal: it counts as infinitely far.
    return float(np.nan_to_num(np.abs(found - expected), nan=np.inf).max())
