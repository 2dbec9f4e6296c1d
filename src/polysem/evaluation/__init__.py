"""Evaluation: numbers with the protocol they were measured under."""

from polysem.evaluation.cost import cost
from polysem.evaluation.evaluate import evaluate
from polysem.evaluation.metrics import compute_recalls
from polysem.evaluation.protocols import Protocol, catalogue
from polysem.evaluation.reports.compare import compare
from polysem.evaluation.reports.significance import intervals, paired_p
from polysem.evaluation.result import Evaluation, Stamp

__all__ = [
    "Evaluation",
    "Protocol",
    "Stamp",
    "catalogue",
    "compare",
    "compute_recalls",
    "cost",
    "evaluate",
    "intervals",
    "paired_p",
]
