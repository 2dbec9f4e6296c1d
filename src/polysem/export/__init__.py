"""Models for other runtimes."""

from polysem.export.graphs import ExportError
from polysem.export.onnx import Agreement, Export, export_onnx

__all__ = ["Agreement", "Export", "ExportError", "export_onnx"]
