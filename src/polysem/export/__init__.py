"""Models for other runtimes."""

from polysem.export.onnx import Export, export_onnx
from polysem.export.parity import Agreement
from polysem.export.tracing import ExportError

__all__ = ["Agreement", "Export", "ExportError", "export_onnx"]
