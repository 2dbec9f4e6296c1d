"""A graph to the bytes of an ONNX file."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polysem.errors import PolysemError
from polysem.export.graphs import Graph

OPSET = 18


class ExportError(PolysemError):
    """A part that cannot be written as a graph, a graph that computes something else, or a folder in the way."""


def write(graph: Graph, path: Path) -> None:
    """Trace the graph and write it as ONNX. Names of the axes that may vary: see its ports."""
    example = max(graph.samples(), key=lambda batch: len(batch[0]))
    ports = (*graph.inputs, graph.output)
    with torch.no_grad(), settled_positions(graph, example), _quiet():
        try:
            # The exporter that traces: the newer one, by torch.export, fixed lengths where GRUs were, and took about
            # ten times as long (docs/decisions.md).
            torch.onnx.export(
                graph,
                example,
                path,
                dynamo=False,
                opset_version=OPSET,
                input_names=[port.name for port in graph.inputs],
                output_names=[graph.output.name],
                dynamic_axes={port.name: port.axes for port in ports if port.axes},
            )
        except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ExportError(f"The {graph.part} cannot be written as ONNX: {reason}") from error


@contextlib.contextmanager
def settled_positions(graph: Graph, example: tuple[Tensor, ...]) -> Iterator[None]:
    """Within, vision transformers take the positions of their patches as a constant, as the pictures' size is one.

    Left to itself, tracing writes down how they were interpolated, by operations that ONNX does not have.
    """
    resizing: list[Any] = [module for module in graph.modules() if hasattr(module, "interpolate_pos_encoding")]
    found: dict[nn.Module, Tensor] = {}

    def remembering(module: Any, original: Any) -> Any:
        def remember(*args: Any, **kwargs: Any) -> Tensor:
            found[module] = original(*args, **kwargs).detach()
            return found[module]

        return remember

    try:
        for module in resizing:
            module.interpolate_pos_encoding = remembering(module, module.interpolate_pos_encoding)
        if resizing:
            graph(*example)
        for module in resizing:
            del module.interpolate_pos_encoding
            if module in found:
                module.interpolate_pos_encoding = lambda *_, constant=found[module], **__: constant
        yield
    finally:
        for module in resizing:
            module.__dict__.pop("interpolate_pos_encoding", None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings, and without the whole graph that it prints before it raises."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
