"""Experiments of the papers that need no data set, beside the papers' own numbers."""

from polysem.reproduction.gpo_experiment import GPOExperiment, reproduce

__all__ = ["GPOExperiment", "reproduce"]
