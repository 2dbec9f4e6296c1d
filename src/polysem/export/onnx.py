"""A model as ONNX files that onnxruntime runs with the same numbers, or no files at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from polysem.errors import ConfigError
from polysem.export import description, parity, tracing
from polysem.export.folder import appearing
from polysem.export.graphs import Graph, graphs
from polysem.export.parity import Agreement
from polysem.export.tracing import ExportError
from polysem.models import Model

TOLERANCE = 1e-4
"""Of a number of a unit vector. Rounding alone makes a few millionths."""


@dataclass(frozen=True)
class Export:
    """Where the files are and how well they agree with the model."""

    out: Path
    files: dict[str, int]
    agreements: dict[str, Agreement]

    @property
    def difference(self) -> float:
        """The largest of all."""
        return max(max(found.difference, found.alone) for found in self.agreements.values())


def export_onnx(
    model: Model,
    out: str | Path,
    tolerance: float = TOLERANCE,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Export:
    """Write image.onnx, text.onnx, similarity.onnx and polysem_export.json into the folder `out`.

    Each graph is run by onnxruntime and compared with the model, on batches of several sizes and items of several
    lengths, together and alone. Where a number differs by more than `tolerance`, an error says so and nothing is left.
    """
    if not 0 < tolerance < float("inf"):
        raise ConfigError(f"tolerance must be a positive number, got {tolerance}.")
    parity.require_runtime()
    out = Path(out)
    copy = _on_cpu(model)
    parts = graphs(copy)
    agreements: dict[str, Agreement] = {}
    with appearing(out) as folder:
        for done, (name, graph) in enumerate(parts.items()):
            progress("Writing and checking", done, len(parts))
            tracing.write(graph, folder / f"{name}.onnx")
            agreements[name] = parity.compare(graph, folder / f"{name}.onnx")
            _accept(graph, agreements[name], tolerance)
        progress("Writing and checking", len(parts), len(parts))
        described = description.describe(copy, parts, agreements, tolerance, folder)
        text = json.dumps(described, indent=2, ensure_ascii=False)
        (folder / description.FILE).write_text(text + "\n", encoding="utf-8")
    return Export(out, {path.name: path.stat().st_size for path in sorted(out.iterdir())}, agreements)


def _accept(graph: Graph, found: Agreement, tolerance: float) -> None:
    if found.difference > tolerance:
        raise ExportError(
            f"The {graph.part} as ONNX differs from the model by up to {found.difference:.2g}, more than "
            f"{tolerance:g}. Nothing was written. A wider --tolerance accepts it."
        )
    if found.alone > tolerance:
        raise ExportError(
            f"The {graph.part} as ONNX gives an item other vectors in a batch than alone, by up to {found.alone:.2g}, "
            f"more than {tolerance:g}. Nothing was written."
        )


def _on_cpu(model: Model) -> Model:
    """The model in evaluation mode and full precision, where it can be traced; the caller's own stays as it is."""
    from copy import deepcopy

    return deepcopy(model).float().cpu().eval()
