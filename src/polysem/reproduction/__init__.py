"""Experiments of the papers that need no data set, beside the papers' own numbers."""

from polysem.reproduction.gpo_synthetic import GPOExperiment, reproduce

__all__ = ["GPOExperiment", "reproduce"]
