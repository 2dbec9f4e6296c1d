"""Evaluation: ranks, recalls and what they are worth."""

from polysem.evaluation.recall import ranks, recalls, retrieval

__all__ = ["ranks", "recalls", "retrieval"]
