"""Evaluation: numbers with the protocol they were measured under."""

from polysem.evaluation.costs.cost import cost
from polysem.evaluation.evaluate import evaluate
from polysem.evaluation.protocols import Protocol, catalogue
from polysem.evaluation.recall import retrieval
from polysem.evaluation.reports.compare import compare
from polysem.evaluation.result import Evaluation
from polysem.evaluation.significance import intervals, paired_p
from polysem.evaluation.stamp import Stamp

__all__ = [
    "Evaluation",
    "Protocol",
    "Stamp",
    "catalogue",
    "compare",
    "cost",
    "evaluate",
    "intervals",
    "paired_p",
    "retrieval",
]
