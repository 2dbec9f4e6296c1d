"""A model as ONNX files that onnxruntime runs with the same numbers, or no files at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from polysem.errors import ConfigError
from polysem.export import description, parity, tracing
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


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into; it takes its place at the end, and is gone after an error.

    An earlier export there is replaced; a folder with anything else in it is refused.
    """
    if out.exists() and not _replaceable(out):
        raise ExportError(f"{out} exists and is no export of polysem's. Give a folder that does not exist yet.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ExportError(f"Cannot write to {out.parent}: {error.strerror or error}.") from None
    try:
        new, old = aside / "new", aside / "old"
        new.mkdir()
        yield new
        if out.exists():
            out.rename(old)
        new.rename(out)
    except OSError as error:
        raise ExportError(f"Cannot write the export to {out}: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _replaceable(out: Path) -> bool:
    return out.is_dir() and ((out / description.FILE).is_file() or not any(out.iterdir()))
